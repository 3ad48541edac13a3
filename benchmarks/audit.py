"""The share of a round that the audit of updates takes, in Flower's simulation (target: 10 %)."""

import logging
import os
import tempfile
from pathlib import Path

import numpy as np

from dufl.errors import InputError
from dufl.experiment.config import Experiment
from dufl.flower.audit import Audit
from dufl.flower.single_machine import QUIET, simulate
from dufl.learning.federation import Record

ROUNDS = 8


def measured(dataset: str) -> tuple[float, float]:
    """The median duration of a round, and of its audit, without the first round."""
    config = Experiment.from_toml(None, {"dataset": dataset, "num_rounds": ROUNDS, "initial_volume": 200})
    config.data.load()
    rounds: list[float] = []
    audits: list[float] = []
    original = Audit.assess

    def assess(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        scores = original(self, *args, **kwargs)
        audits.append(self.seconds)
        return scores

    def on_record(record: Record) -> None:
        rounds.append(record.seconds)

    Audit.assess = assess  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            simulate(config, Path(folder) / "run", on_record=on_record)
    finally:
        Audit.assess = original  # type: ignore[method-assign]
    return float(np.median(rounds[1:])), float(np.median(audits[1:]))


def main() -> None:
    """Measure the audit on the digits and, if its files are there, on FMNIST."""
    os.environ.update(QUIET)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for dataset in ("digits", "fmnist"):
        try:
            round, audit = measured(dataset)
        except InputError as error:
            print(f"Audit on {dataset}: not measured, {error}")
            continue
        print(f"Audit on {dataset}, 15 clients, logistic model, 20 epochs")
        print(f"  round                                {round:.3f} s")
        print(f"  audit of its updates                 {1000 * audit:.1f} ms: ", end="")
        print(f"{100 * audit / round:.1f} % of a round (target: 10 %)")


if __name__ == "__main__":
    main()
