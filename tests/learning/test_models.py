"""Models: their shapes, weights and seeds, a user's own, and how what does not fit is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from dufl.data.datasets import load_dataset
from dufl.errors import InputError, PluginError
from dufl.learning.models import OURS, build
from dufl.learning.settings import MODELS
from dufl.plugins import check_spec

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]

OWN = """
import torch
from torch import nn

class Both(nn.Sequential):
    def __init__(self, shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), num_classes))

class Neither(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

class Lazy(nn.Sequential):
    def __init__(self, *, num_classes=3):
        super().__init__(nn.Flatten(), nn.LazyLinear(num_classes))

class Any(Both):
    def __init__(self, **options):
        super().__init__(**options)

class Dropping(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.5))

def made(num_classes):
    return Both((1, 8, 8), num_classes)

class Seven(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 7))

class Pair(Neither):
    def forward(self, x):
        return x, x

class Wrong(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(65, 10))

class Raises(nn.Module):
    def __init__(self):
        raise RuntimeError("no luck\\nand more lines")

class Silent(nn.Module):
    def __init__(self):
        raise RuntimeError

class Needs(nn.Module):
    def __init__(self, depth):
        super().__init__()

class Empty(nn.Module):
    pass

class Frozen(Neither):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

def number():
    return 7

constant = 7
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module on the path, as `user_nets`."""
    (tmp_path / "user_nets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_nets", raising=False)


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MODELS)
def test_one_logit_a_class_for_every_dataset(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 10)
    assert model.training
    assert model(torch.rand(3, *shape)).shape == (3, 10)
    assert all(p.requires_grad and p.dtype is torch.float32 for p in model.parameters())
    statistics = {key.rpartition(".")[2] for key, _ in model.named_buffers()}
    assert statistics == ({"running_mean", "running_var", "num_batches_tracked"} if name == "cnn" else set())


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 9, 15), (1, 40, 11)])
def test_cnn_takes_pictures_of_any_size(shape: tuple[int, ...]) -> None:
    model = build("cnn", shape, 5)
    assert model(torch.rand(2, *shape)).shape == (2, 5)
    assert model.eval()(torch.rand(1, *shape)).shape == (1, 5)


def test_every_known_name_has_a_model() -> None:
    assert tuple(OURS) == MODELS


@pytest.mark.parametrize("name", ["cnn", "resnet18", "resnet18-coarse"])
def test_weights_follow_from_the_seed_alone(name: str) -> None:
    first = weights(build(name, (1, 8, 8), 10, seed=3))
    torch.rand(7)
    assert torch.equal(first, weights(build(name, (1, 8, 8), 10, seed=3)))
    assert not torch.equal(first, weights(build(name, (1, 8, 8), 10, seed=4)))
    build("cnn", (1, 8, 8), 10, seed=2**70)  # no seed is too large


@pytest.mark.parametrize("name", MODELS)
def test_global_generator_is_untouched(name: str) -> None:
    before = torch.get_rng_state()
    build(name, (1, 8, 8), 10, seed=5)
    assert torch.equal(before, torch.get_rng_state())


def test_logistic_starts_at_zero_with_the_weight_first() -> None:
    weight, bias = build("logistic", (3, 32, 32), 10, seed=9).parameters()
    assert weight.shape == (10, 3072)
    assert bias.shape == (10,)
    assert not weight.any()
    assert not bias.any()


def test_logistic_takes_features_that_are_no_pictures() -> None:
    assert build("logistic", (20,), 4)(torch.rand(2, 20)).shape == (2, 4)


def test_resnet18_is_the_one_for_small_pictures() -> None:
    model = build("resnet18", (3, 32, 32), 100)
    # He et al.'s ResNet-18 with a 3 by 3 stem: 11,173,962 for 10 classes, and 513 for every further one
    assert weights(model).numel() == 11_173_962 + 90 * 513
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 100)
    assert sum(isinstance(part, nn.Conv2d) for part in model.modules()) == 20
    assert not any(isinstance(part, nn.BatchNorm2d | nn.MaxPool2d) for part in model.modules())


def test_the_coarse_resnet18_has_the_stem_of_the_original() -> None:
    model = build("resnet18-coarse", (3, 32, 32), 100)
    assert weights(model).numel() == 11_173_962 + 90 * 513 + 3 * 64 * (7**2 - 3**2)
    stem = nn.Sequential(*list(model.children())[:5])
    assert stem(torch.rand(1, 3, 32, 32)).shape == (1, 64, 8, 8)


@pytest.mark.parametrize("name", ["cnn", "resnet18", "resnet18-coarse"])
def test_a_picture_alone_gives_what_it_gives_in_a_batch(name: str) -> None:
    model, images = build(name, (3, 16, 16), 10).eval(), torch.rand(4, 3, 16, 16)
    nn.init.normal_(list(model.parameters())[-2])  # the cnn's last layer starts at zero
    with torch.no_grad():
        together, alone = model(images), model(images[2:3])
    assert alone.std() > 0
    torch.testing.assert_close(together[2:3], alone, rtol=1e-4, atol=1e-4)


def test_cnn_does_not_mind_brightness_and_contrast() -> None:
    model, images = build("cnn", (1, 8, 8), 10).eval(), torch.rand(4, 1, 8, 8)
    nn.init.normal_(list(model.parameters())[-2])
    with torch.no_grad():
        torch.testing.assert_close(model(0.5 * images + 0.3), model(images), rtol=0.05, atol=0.1)


def test_cnn_learns_at_the_default_learning_rate() -> None:
    digits = load_dataset("digits")
    images = torch.from_numpy(digits.train.features[:300]).float() / 255
    labels = torch.from_numpy(digits.train.labels[:300]).long()
    unseen = torch.from_numpy(digits.test.features).float() / 255
    model, shuffle = build("cnn", digits.shape, 10), torch.Generator().manual_seed(0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss() -> float:
        model.eval()
        with torch.no_grad():
            value = float(functional.cross_entropy(model(images), labels))
        model.train()
        return value

    before = loss()
    assert before == pytest.approx(2.302585)  # ln 10: it starts without an opinion
    for _ in range(20):
        for batch in torch.split(torch.randperm(300, generator=shuffle), 64):
            optimiser.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    model.eval()
    with torch.no_grad():
        right = (model(unseen).argmax(1) == torch.from_numpy(digits.test.labels)).float().mean()
    assert loss() < before / 3
    assert right > 0.8


@pytest.mark.parametrize("name", ["Both", "Neither", "Lazy", "Any", "Dropping", "made"])
@pytest.mark.usefixtures("own")
def test_a_users_own_model(name: str) -> None:
    model = build(f"user_nets:{name}", (1, 8, 8), 10, seed=1)
    assert model.training
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert torch.equal(weights(model), weights(build(f"user_nets:{name}", (1, 8, 8), 10, seed=1)))
    assert not torch.equal(weights(model), weights(build(f"user_nets:{name}", (1, 8, 8), 10, seed=2)))


def test_the_current_folder_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_here.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != ""])
    with pytest.raises(
        InputError, match=r"models_here.py is in the current folder, .* add --import-from [.] "
    ):
        build("models_here:Neither", (1, 8, 8), 10)
    assert "" not in sys.path
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "user_nets:Nope",
            "^model must be a class or function in user_nets, got 'user_nets:Nope'$",
        ),
        ("user_nets:constant", "^model must be a class or function in user_nets, got"),
        ("no_such_module:Net", "^model must be importable, got 'no_such_module:Net': ModuleNotFoundError: "),
        (
            "user_nets:Raises",
            r"^the model 'user_nets:Raises' raised RuntimeError: no luck \(while it was made",
        ),
        (
            "user_nets:Silent",
            r"^the model 'user_nets:Silent' raised RuntimeError \(while it was made\)$",
        ),
        (
            "user_nets:Needs",
            r"^the model 'user_nets:Needs' raised TypeError: .*'depth' \(while it was made\)$",
        ),
        ("user_nets:number", "^model 'user_nets:number' must be a torch.nn.Module, got int$"),
        (
            "user_nets:Empty",
            "^model 'user_nets:Empty' must be one with trainable parameters, got none$",
        ),
        (
            "user_nets:Frozen",
            "^model 'user_nets:Frozen' must be one with trainable parameters, got none$",
        ),
        (
            "user_nets:Seven",
            r"^the output of model 'user_nets:Seven' must be of shape \(2, 10\) for 2 samples of shape "
            r"\(1, 8, 8\) and 10 classes, got \(2, 7\)$",
        ),
        ("user_nets:Pair", "^the output of model 'user_nets:Pair' must be .*, got tuple$"),
        (
            "user_nets:Wrong",
            r"^the model 'user_nets:Wrong' raised RuntimeError: mat1 and .* \(on two samples of shape ",
        ),
        ("resnet", "^unknown model 'resnet': did you mean 'resnet18'[?]$"),
        (
            "vit",
            "^unknown model 'vit': known are logistic, linear, cnn, resnet18, resnet18-coarse, or package",
        ),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_is_no_model_is_refused_in_a_sentence(name: str, says: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises((InputError, PluginError), match=says) as caught:
        build(name, (1, 8, 8), 10)
    assert "\n" not in str(caught.value)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("shape", [(64,), (1, 7, 8), (1, 8, 4), (1, 1, 8, 8)])
@pytest.mark.parametrize("name", ["cnn", "resnet18", "resnet18-coarse"])
def test_only_pictures_are_for_convolutions(name: str, shape: tuple[int, ...]) -> None:
    rule = rf"\(channels, height, width\) of at least 8 by 8 for model '{name}'"
    with pytest.raises(InputError, match=f"^the shape of a sample must be {rule}, got "):
        build(name, shape, 10)


def test_names_are_checked_by_their_form() -> None:
    for name in (*MODELS, "package.module:Class"):
        assert check_spec("model", name, MODELS) == name
    for name in ("", "cmn", "a:b:c", "module:", ":Class", "a b:C"):
        with pytest.raises(InputError, match=r"^unknown model "):
            check_spec("model", name, MODELS)


def test_names_are_checked_without_torch() -> None:
    code = "import sys; from dufl.learning.settings import Training; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
