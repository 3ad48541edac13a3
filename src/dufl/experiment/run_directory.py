"""The directory of a training run: what it was told, what came out, and where it can go on.

config.toml        the resolved configuration (clients.csv beside it, if clients came from a file)
plan.npz           the plan that is followed
environment.json   versions, machine, seed, and a checksum of the samples; where it is, a run has begun
metrics.jsonl      one object a round
checkpoint.npz     all that the next rounds depend on
model.safetensors  the weights in the end
summary.json       how it ended; written last
"""

import fcntl
import json
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dufl.errors import DuflError, InputError
from dufl.experiment.arrays import write_plan_arrays
from dufl.experiment.config import Config
from dufl.experiment.environment import environment
from dufl.experiment.files import from_json, make_directory, replacing, to_json, write_text
from dufl.game.plan import Plan
from dufl.learning.engine import Named
from dufl.learning.federation import Arrays, Record

FREE = {
    ("training", "workers"),
    ("training", "checkpoint_every"),
    ("training", "device"),
    ("data", "data_dir"),
}


class RunDirectory:
    """A run on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        """Whether a run has begun there."""
        return (self.folder / "environment.json").exists()

    @property
    def config(self) -> Path:
        """Its configuration file."""
        return self.folder / "config.toml"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out."""
        make_directory(self.folder)
        with self._writing():
            lock = (self.folder / ".lock").open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"{self.folder} must be free, but another process trains in it") from None
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say what to do if the directory cannot be written to."""
        try:
            yield
        except OSError as fault:
            there = (self.folder / "checkpoint.npz").exists()
            last = "the last checkpoint is whole; when that is mended, " if there else ""
            raise DuflError(f"{self.folder} cannot be written to: {fault}; {last}{self.advice}") from fault

    @property
    def advice(self) -> str:
        """How to go on."""
        return f"go on with: dufl train --out {shlex.quote(str(self.folder))} --resume"

    def check_free(self, config: Config, resume: bool) -> None:
        """Refuse a run of another configuration, and one of this unless it is to be resumed."""
        if not self.exists:
            return
        self.check_same(config)
        if not resume:
            raise InputError(
                f"{self.folder} holds a run already: add --resume to go on with it, or choose another --out"
            )

    def check_same(self, config: Config) -> None:
        """Refuse to go on with another configuration, saying what differs."""
        try:
            before = tomllib.loads(self.config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as fault:
            raise InputError(f"{self.config} must be the configuration of the run: {fault}") from None
        now = tomllib.loads(config.to_toml())
        found = []
        for section in sorted(before.keys() | now.keys()):
            one, two = before.get(section, {}), now.get(section, {})
            for key in sorted(one.keys() | two.keys()):
                if (section, key) not in FREE and one.get(key) != two.get(key):
                    found.append(f"{section}.{key} was {one.get(key)!r}, is {two.get(key)!r}")
        clients = self.folder / "clients.csv"
        if (
            config.clients.file
            and clients.exists()
            and clients.read_text(encoding="utf-8") != config.game.clients.to_csv()
        ):
            found.append("the clients in the file are others")
        if found:
            raise InputError(f"{self.folder} holds a run of another configuration: {'; '.join(found)}")

    def begin(self, config: Config, plan: Plan | None, data: str) -> None:
        """Write what is known before the first round."""
        with self._writing():
            self._begin(config, plan, data)

    def _begin(self, config: Config, plan: Plan | None, data: str) -> None:
        write_text(self.config, config.to_toml())
        if config.clients.file is not None:
            write_text(self.folder / "clients.csv", config.game.clients.to_csv())
        if plan is not None:
            write_plan_arrays(plan, self.folder / "plan.npz")
        write_text(self.folder / "metrics.jsonl", "")
        write_text(
            self.folder / "environment.json",
            to_json(environment() | {"seed": config.training.seed, "data": data}),
        )

    def add(self, record: Record) -> None:
        """One more line of metrics."""
        with self._writing(), (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(to_json(asdict(record), indent=None))

    def checkpoint(self, state: Arrays) -> None:
        """Replace the checkpoint."""
        path = self.folder / "checkpoint.npz"
        with self._writing(), replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **state)  # type: ignore[arg-type]

    def check_data(self, data: str) -> None:
        """Refuse to go on with other samples."""
        path = self.folder / "environment.json"
        try:
            before = json.loads(path.read_text(encoding="utf-8"))["data"]
        except (OSError, ValueError, KeyError, TypeError) as fault:
            raise InputError(f"{path} must be the environment of the run: {fault}") from None
        if before != data:
            raise InputError(f"{self.folder} holds a run on other samples: the dataset has changed")

    def resume(self) -> tuple[Arrays | None, list[Record]]:
        """The last checkpoint and the metrics up to it; later ones are cut off."""
        with self._writing():
            return self._resume()

    def _resume(self) -> tuple[Arrays | None, list[Record]]:
        path = self.folder / "checkpoint.npz"
        if not path.exists():
            write_text(self.folder / "metrics.jsonl", "")
            return None, []
        try:
            with path.open("rb") as stream, np.load(stream) as arrays:
                state = dict(arrays)
            rounds = int(state["round"])
        except (OSError, ValueError, KeyError, BadZipFile) as fault:
            raise InputError(f"{path} must be an undamaged checkpoint: {fault}") from None
        return state, self._cut(rounds)

    def cut(self, rounds: int) -> list[Record]:
        """The metrics of the first so many rounds; later ones are cut off."""
        with self._writing():
            return self._cut(rounds)

    def _cut(self, rounds: int) -> list[Record]:
        records = read_metrics(self.folder)[:rounds]
        if len(records) < rounds:
            raise InputError.of(f"{self.folder}/metrics.jsonl", f"of {rounds} rounds", f"{len(records)}")
        lines = [to_json(asdict(record), indent=None) for record in records]
        write_text(self.folder / "metrics.jsonl", "".join(lines))
        return records

    def finish(self, weights: Named, summary: dict[str, Any]) -> None:
        """Write the model and, last of all, the summary."""
        from safetensors.numpy import save_file

        with self._writing(), replacing(self.folder / "model.safetensors") as temporary:
            save_file({name: np.ascontiguousarray(values) for name, values in weights.items()}, temporary)
        with self._writing():
            write_text(self.folder / "summary.json", to_json(summary))

    @property
    def summary(self) -> dict[str, Any] | None:
        """How it ended, if it has."""
        path = self.folder / "summary.json"
        if not path.exists():
            return None
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as fault:
            raise InputError(f"{path} must be the summary of a run: {fault}") from None

    def weights(self) -> Named:
        """The model of a run that is over."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.folder / "model.safetensors"
        try:
            return load_file(path)
        except (OSError, SafetensorError) as fault:
            raise InputError(f"{path} must be the model of the run: {fault}") from None


def read_metrics(folder: Path) -> list[Record]:
    """The rounds of a run, as far as it has come; a line cut short by a kill is left out."""
    records: list[Record] = []
    path = folder / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"{path} must be the metrics of a run: {fault}") from None
    for number, line in enumerate(lines):
        try:
            records.append(_record(from_json(line)))
        except (ValueError, TypeError, KeyError, IndexError) as fault:
            if number + 1 == len(lines):
                break
            raise InputError(f"{path} must be the metrics of a run: line {number + 1}: {fault}") from None
    return records


def _record(values: dict[str, Any]) -> Record:
    if values["loss"] is None:
        values["loss"] = float("nan")
    record = Record(**values)
    for name in (
        "round",
        "accuracy",
        "loss",
        "total_volume",
        "mean_age",
        "payment",
        "server_cost",
        "seconds",
    ):
        if not isinstance(values[name], int | float):
            raise TypeError(f"{name} must be a number, got {values[name]!r}")
    return record
