"""The paper's setting on real data, with 5 local epochs: accuracies near those of a prototype."""

from pathlib import Path

import pytest

from dufl.data.datasets import Dataset, load_dataset
from dufl.experiment.train import train
from loading import load
from real_data import real

PROTOTYPE = {
    "fmnist": {("static", 0): 82.1, ("static", 0.75): 65.2, ("static", 1.25): 53.2}
    | {("dufl", 0.75): 78.8, ("dufl", 1.25): 78.3},
    "mnist": {("static", 0): 90.5, ("static", 0.75): 75.0, ("static", 1.25): 57.1}
    | {("dufl", 0.75): 88.3, ("dufl", 1.25): 88.2},
}
CELLS = [(name, *cell, accuracy) for name, cells in PROTOTYPE.items() for cell, accuracy in cells.items()]


@pytest.mark.parametrize(("name", "policy", "sigma", "accuracy"), CELLS)
def test_accuracy_is_the_prototype_s(name: str, policy: str, sigma: float, accuracy: float) -> None:
    dataset = load_dataset(name, real(name))
    assert isinstance(dataset, Dataset)
    changes = (f"time_sensitivity={sigma}", f"policy={policy}", f"data.dataset={name}")
    leader = (
        "leader.method=algorithm1",
        "leader.search=direct",
    )  # the same plan as Bayesian, in a tenth of the time
    run = train(load(None, [*changes, *leader, "training.local_epochs=5"]), dataset=dataset)
    assert 100 * run.accuracy == pytest.approx(accuracy, abs=1.5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("cifar10", 0.40), ("svhn", 0.70)])
def test_the_cnn_learns_real_pictures(name: str, least: float, tmp_path: Path) -> None:
    """Ten rounds of five epochs; data update beats static, and both learn."""
    dataset = load_dataset(name, real(name))
    assert isinstance(dataset, Dataset)
    changes = ("training.model=cnn", "training.local_epochs=5", "num_rounds=10", "time_sensitivity=1.25")
    found = {}
    for policy in ("static", "dufl"):
        config = load(None, [*changes, f"data.dataset={name}", f"policy={policy}"])
        run = train(config, out=tmp_path / policy, dataset=dataset)
        found[policy] = [record.accuracy for record in run.records]
        print(name, policy, " ".join(f"{100 * accuracy:.1f}" for accuracy in found[policy]))
    assert found["dufl"][-1] > least
    assert found["static"][-1] > found["static"][0]
    assert found["dufl"][-1] > found["static"][-1]
