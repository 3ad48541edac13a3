"""Models by name: logistic regression, a light CNN, ResNet-18, or a user-defined `torch.nn.Module`.

The built-in models have no model buffers. They normalize within a sample, because batch statistics of
clients with little and unequal data do not average well. All take features in [0, 1] and return one logit per
class.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dufl.errors import InputError
from dufl.learning.settings import MODELS
from dufl.plugins import Spec, accepted_keywords, calling, check_spec, describe, resolve


def build(spec: Spec, shape: tuple[int, ...], num_classes: int, seed: int = 0) -> nn.Module:
    """A model with its initial weights, checked on two samples.

    Args:
        spec: see `Training.model`.
        shape: of one sample.
        num_classes: the number of logits.
        seed: determines the initial weights; the state of torch's global generator is preserved.

    >>> build("logistic", (1, 8, 8), 10)(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    """
    check_spec("model", spec, MODELS)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**64)  # torch.manual_seed would reseed the GPUs too
        known = OURS.get(spec) if isinstance(spec, str) else None
        model = known(shape, num_classes) if known else _own(spec, shape, num_classes)
        _try(model, describe(spec), shape, num_classes)  # also initializes lazy layers
    return model


class Logistic(nn.Sequential):
    """Multinomial logistic regression, initialized with zeros: the loss is convex, so any start will do.

    With one output and the squared error it is linear regression.
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(nn.Flatten(), _zeroed(nn.Linear(torch.Size(shape).numel(), num_classes)))


class LightCNN(nn.Sequential):
    """Two normalized convolutions, one of them strided, and a linear layer on the whole grid.

    Selected from thirty candidates, most of them discarded after 3 rounds, by FedAvg with 6 clients of 500
    samples and 5 epochs per round of plain SGD at 0.01. After 8 rounds its accuracy is 48.8 and 50.7 % on
    CIFAR-10 and 80.2 and 79.6 % on SVHN (two seeds each); two convolutions without normalization and two
    dense layers reach 19.6 % and 18.5 %. Global average pooling or an additional residual block learned more
    slowly at this learning rate. It takes 5.4 M multiplications per image; one CPU thread trained on 1,500 to
    2,150 images per second.
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        channels, height, width = _image_shape(shape, "cnn")
        positions = ((height + 1) // 2 // 2) * ((width + 1) // 2 // 2)
        super().__init__(
            Standardize(),
            *_normalized(channels, 32, 5, stride=2),
            nn.ReLU(),
            *_normalized(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            _zeroed(nn.Linear(64 * positions, num_classes)),
        )


class Standardize(nn.Module):
    """Scales every image to mean 0 and standard deviation 1; a constant image becomes zero."""

    def forward(self, images: Tensor) -> Tensor:
        """The standardized images; the result does not depend on the rest of the batch."""
        return functional.group_norm(images, 1, eps=1e-3)


class ResNet18(nn.Sequential):
    """ResNet-18 for small images: a 3 by 3 stem and no max-pooling.

    GroupNorm with two groups replaces BatchNorm, as in Reddi et al. 2021, Adaptive Federated Optimization.
    With `coarse` it has the original stem, which is made for large images: it reduces 32 by 32 pixels to 8 by
    8 for the blocks, with a sixteenth of the work.
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int, coarse: bool = False) -> None:
        channels = _image_shape(shape, "resnet18-coarse" if coarse else "resnet18")[0]
        blocks, channels_in = [], 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Residual(channels_in, width, stride), Residual(width, width, 1)]
            channels_in = width
        super().__init__(
            Standardize(),
            _conv(channels, 64, 7, 2) if coarse else _conv(channels, 64, 3, 1),
            nn.GroupNorm(2, 64),
            nn.ReLU(),
            *([nn.MaxPool2d(3, 2, 1)] if coarse else []),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, num_classes),
        )


class Residual(nn.Module):
    """The basic block: two convolutions and a shortcut."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(channels_in, width, 3, stride),
            nn.GroupNorm(2, width),
            nn.ReLU(),
            _conv(width, width, 3, 1),
            nn.GroupNorm(2, width),
        )
        same = stride == 1 and channels_in == width
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(_conv(channels_in, width, 1, stride), nn.GroupNorm(2, width))
        )

    def forward(self, images: Tensor) -> Tensor:
        """The rectified sum of shortcut and body."""
        return functional.relu(self.shortcut(images) + self.body(images))


OURS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "logistic": Logistic,
    "linear": Logistic,
    "cnn": LightCNN,
    "resnet18": ResNet18,
    "resnet18-coarse": partial(ResNet18, coarse=True),
}


def _conv(channels_in: int, width: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution before a normalization, which makes a bias redundant."""
    conv = nn.Conv2d(channels_in, width, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _normalized(channels_in: int, width: int, kernel: int, stride: int = 1) -> tuple[nn.Module, ...]:
    """A convolution and its GroupNorm, 16 channels per group, with weights a tenth of the usual.

    Normalization cancels the scale of the weights in the output, but not in the effective learning rate: a
    step of SGD changes the direction of small weights more. The weights then grow to a suitable scale.
    """
    conv = nn.Conv2d(channels_in, width, kernel, stride, kernel // 2, bias=False)
    nn.init.normal_(conv.weight, std=0.1 * (2 / (channels_in * kernel**2)) ** 0.5)
    return conv, nn.GroupNorm(width // 16, width)


def _zeroed(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _image_shape(shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    if len(shape) != 3 or min(shape[1:]) < 8:
        rule = f"(channels, height, width) of at least 8 by 8 for model {name!r}"
        raise InputError.of("the shape of a sample", rule, shape)
    return shape


def _own(spec: Spec, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A user-defined model: made by a class or function, or a copy of an object."""
    maker = resolve("model", spec)
    with calling("model", spec, "while it was made"):
        if isinstance(maker, nn.Module):
            model = copy.deepcopy(maker)
        else:
            model = maker(**_accepted(maker, {"shape": shape, "num_classes": num_classes}))
    name = describe(spec)
    if not isinstance(model, nn.Module):
        raise InputError.of(f"model {name!r}", "a torch.nn.Module", type(model).__name__)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError.of(f"model {name!r}", "one with trainable parameters", "none")
    return model


def _accepted(maker: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    if getattr(maker, "__init__", None) is nn.Module.__init__:
        return {}  # its signature accepts any keyword, but it raises on every one
    return accepted_keywords(maker, offered)


def _try(model: nn.Module, name: str, shape: tuple[int, ...], num_classes: int) -> None:
    """Check now, not in the middle of a round, that a model fits the samples."""
    with calling("model", name, f"on two samples of shape {shape}"), torch.no_grad():
        model.eval()
        logits = model(torch.zeros(2, *shape))
        model.train()
    check_logits(logits, name, (2, num_classes), shape)
    for key, tensor in model.state_dict().items():
        if tensor.is_complex() or not tensor.isfinite().all():
            raise InputError.of(f"{key} of model {name!r}", "finite real numbers at the start", "others")


def check_logits(logits: object, name: str, wanted: tuple[int, int], shape: tuple[int, ...]) -> Tensor:
    """The output of a model, checked to be one logit for each of the wanted (samples, classes)."""
    got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(logits, Tensor) or got != wanted:
        rule = f"of shape {wanted} for {wanted[0]} samples of shape {shape} and {wanted[1]} classes"
        raise InputError.of(f"the output of model {name!r}", rule, got)
    return logits
