"""Models that pass the initial check and fail later, for the tests of plugins."""

from typing import Any

import torch
from torch import Tensor, nn


class _Linear(nn.Sequential):
    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(nn.Linear(torch.Size(shape).numel(), num_classes))

    def forward(self, images: Tensor) -> Any:
        return self[0](images.flatten(1))


class Fails(_Linear):
    """Raises in training."""

    def forward(self, images: Tensor) -> Any:
        if self.training:
            raise ValueError("too bright\nand too loud")
        return super().forward(images)


class Tuple(_Linear):
    """Returns two outputs in training, as models with an auxiliary output do."""

    def forward(self, images: Tensor) -> Any:
        logits = super().forward(images)
        return (logits, logits) if self.training else logits


class Short(_Linear):
    """Returns logits for one sample too few."""

    def forward(self, images: Tensor) -> Any:
        return super().forward(images[1:] if len(images) > 2 else images)


class Untested(_Linear):
    """Raises when it is evaluated on more than two samples."""

    def forward(self, images: Tensor) -> Any:
        if not self.training and len(images) > 2:
            raise OSError("away")
        return super().forward(images)


class Constant(_Linear):
    """Has parameters that its output does not depend on."""

    def forward(self, images: Tensor) -> Any:
        return super().forward(images).detach()


class Lost(_Linear):
    """Has NaN among its initial weights."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        nn.init.constant_(self[0].weight, float("nan"))  # type: ignore[arg-type]


class Ends(_Linear):
    """Exits its process with `SystemExit`."""

    def forward(self, images: Tensor) -> Any:
        if self.training:
            raise SystemExit(4)
        return super().forward(images)
