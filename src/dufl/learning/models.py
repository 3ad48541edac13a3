"""Models by name: logistic regression, a light CNN, ResNet-18, or a user-defined `torch.nn.Module`.

All take features in [0, 1] and return one logit per class. The light CNN has model buffers, the running
statistics of BatchNorm, which are averaged by volume. The others normalize within a sample, or not at all.
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
    """Seven 3 by 3 convolutions with BatchNorm; the image is halved four times, before the costly ones.

    The pyramid of K. Jordan, *94% on CIFAR-10 in 3.29 Seconds on a Single GPU* (2024), at a half to a quarter
    of its width. It needs steps that are large enough, such as a learning rate of 0.03 with momentum 0.9.
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        channels = _image_shape(shape, "cnn")[0]
        layers = [Standardize(), *_normalized(channels, 24), _halved()]
        channels = 24
        for width in (32, 64, 128):
            layers += [_conv3(channels, width), _halved(), nn.BatchNorm2d(width), nn.ReLU()]
            layers += _normalized(width, width)
            channels = width
        last = _zeroed(nn.Linear(channels, num_classes))
        super().__init__(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), last)


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


def _normalized(channels_in: int, width: int) -> list[nn.Module]:
    return [_conv3(channels_in, width), nn.BatchNorm2d(width), nn.ReLU()]


def _conv3(channels_in: int, width: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, width, 3, padding=1, bias=False)


def _halved() -> nn.MaxPool2d:
    return nn.MaxPool2d(2, ceil_mode=True)  # a single pixel stays one


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
