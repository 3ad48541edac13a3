"""User-defined models, for the tests of training with torch."""

import torch
from torch import Tensor, nn

from dufl.learning.models import Logistic as Logistic  # the logistic model through torch, by import path


class Normalised(nn.Module):
    """A model with running statistics and random layers that prints."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(torch.Size(shape).numel(), 20),
            nn.BatchNorm1d(20),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(20, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Prints to standard output, which workers use for their replies."""
        print("forward")
        return self.layers(images)  # type: ignore[no-any-return]


class Mortal(Normalised):
    """Kills its process while a certain file exists."""

    def forward(self, images: Tensor) -> Tensor:
        """Kills the process if the file exists."""
        import os
        import signal
        from pathlib import Path

        doomed = Path(os.environ["DOOMED"])
        if self.training and doomed.exists():
            if os.environ.get("DOOMED_ONCE"):
                doomed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)
