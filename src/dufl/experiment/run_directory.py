"""The run directory: the configuration, the results and the checkpoint of a training run.

manifest.json      the checksums of all final files; see `output`
config.toml        the resolved configuration (with clients.csv, if the clients came from a file)
plan.npz           the plan that the policy follows
environment.json   versions, machine, seed and a checksum of the samples; listed once a run has begun
metrics.jsonl      one object per round
checkpoint.npz     the complete state for resuming
model.safetensors  the final weights
summary.json       the summary of the run; listed once the run has finished
"""

import fcntl
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dufl.errors import DuflError, InputError
from dufl.experiment.agreement import DEAL, read_agreement
from dufl.experiment.arrays import read_sealed, write_sealed
from dufl.experiment.config import CLIENTS_FILE, Changes, Experiment
from dufl.experiment.environment import environment
from dufl.experiment.files import make_directory, replacing, sync, to_json, write_text
from dufl.experiment.metrics import FILE as METRICS
from dufl.experiment.metrics import read_metrics as read_metrics
from dufl.experiment.metrics import to_line
from dufl.experiment.output import FLOWER, RUN, Kind, Manifest, check_output, claim
from dufl.experiment.plan_directory import read_plan_arrays, write_plan_arrays
from dufl.experiment.stored_config import flat, read_config, read_json, read_table
from dufl.game.plan import Plan
from dufl.game.prediction import has_unit
from dufl.learning.engine import Named
from dufl.learning.federation import Arrays, Record

FREE = {"training.workers", "training.checkpoint_every", "training.device", "data.data_dir"}


_ENDS = ("checkpoint.npz", "model.safetensors", "summary.json")  # removed when a run begins


class RunDirectory:
    """A run on disk.

    Args:
        folder: the run directory.
        kind: `RUN`, or `FLOWER` for a run on Flower.
        in_memory: whether all metrics are kept in memory too, to write them again if the file is lost.
    """

    def __init__(self, folder: Path, kind: Kind = RUN, in_memory: bool = True) -> None:
        self.folder = folder
        self.kind = kind
        self._in_memory = in_memory
        self._lines: list[str] = []  # the expected lines of the metrics
        self._size = 0  # their size in bytes
        self._begun: Manifest | None = None  # the manifest that this process wrote or read

    @classmethod
    def at(cls, folder: Path) -> "RunDirectory | None":
        """The run in a directory, of either kind, if there is one."""
        return next((place for kind in (RUN, FLOWER) if (place := cls(folder, kind)).exists), None)

    @property
    def exists(self) -> bool:
        """Whether the directory holds a run of this kind."""
        manifest = Manifest.read(self.folder)
        return manifest is not None and manifest.kind == self.kind and "environment.json" in manifest.files

    @property
    def manifest(self) -> Manifest:
        """The manifest of the run."""
        manifest = Manifest.read(self.folder)
        if manifest is None or not self.exists:
            raise InputError.of(str(self.folder), f"a {self.kind.name}", "something else")
        return manifest

    def load(self, changes: Changes | None = None) -> Experiment:
        """Read the experiment of the run, with some changes."""
        return read_config(self.manifest, changes)

    def plan(self, experiment: Experiment) -> Plan | None:
        """Read the plan that the run follows; None if it follows none, or one that was agreed on Flower."""
        manifest = self.manifest
        if "plan.npz" not in manifest.files or (self.folder / DEAL).exists():
            return None
        leader = experiment.leader
        return read_plan_arrays(manifest, experiment.game, leader.method, leader.competition)

    def agreed_plan(self, experiment: Experiment) -> Plan | None:
        """Read the plan that was agreed on Flower, if its loss law predicts something."""
        if self.kind != FLOWER or not has_unit(experiment.game.loss):
            return None
        if experiment.game.horizon == "endless":
            return None  # there are many plans, one after the other
        agreement = read_agreement(self.folder, experiment.game.num_rounds)
        return None if agreement is None else agreement.plan(experiment)

    def predicted_plan(self, experiment: Experiment) -> Plan | None:
        """Read the plan that the run follows, if its loss law predicts something or clients may stay away."""
        told = has_unit(experiment.game.loss) or experiment.game.participation == "voluntary"
        return self.plan(experiment) if told else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory against other processes."""
        make_directory(self.folder)
        with self._writing():
            lock = (self.folder / ".lock").open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"{self.folder} must be free, but another process has it open") from None
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Add advice to errors if the directory cannot be written to."""
        try:
            yield
        except OSError as error:
            saved = (self.folder / "checkpoint.npz").exists()
            last = "the last checkpoint is intact; when this is fixed, " if saved else ""
            raise DuflError(f"{self.folder} cannot be written to: {error}; {last}{self.advice}") from error

    @property
    def advice(self) -> str:
        """How to resume the run."""
        return f"resume with: dufl train --out {shlex.quote(str(self.folder))} --resume"

    def check_free(self, experiment: Experiment, resume: bool, force: bool = False) -> None:
        """Raise an error if the directory holds something other than the run to begin or to resume."""
        if not self.exists:
            check_output(self.folder, self.kind, force)
            return
        self.check_same(experiment)
        if not resume:
            raise InputError(
                f"{self.folder} holds a run already: add --resume to resume it, or choose another --out"
            )

    def check_same(self, experiment: Experiment) -> None:
        """Raise an error that lists the differences if the run is of another experiment."""
        different = self.differences(experiment)
        if different:
            listed = "; ".join(different.values())
            raise InputError(f"{self.folder} holds a run of another configuration: {listed}")

    def differences(self, experiment: Experiment) -> dict[str, str]:
        """How an experiment differs from that of the run, by key."""
        manifest = self.manifest
        before = flat(read_table(manifest))
        now = flat(tomllib.loads(experiment.to_toml()))
        different = {
            key: f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
            for key in sorted(before.keys() | now.keys())
            if key not in FREE and before.get(key) != now.get(key)
        }
        listed = experiment.clients.file and CLIENTS_FILE in manifest.files
        if listed and manifest.read_file(CLIENTS_FILE).decode() != experiment.game.clients.to_csv():
            different["clients.file"] = "the clients in the file differ"
        return different

    def begin(self, experiment: Experiment, plan: Plan | None, data: str, force: bool = False) -> None:
        """Write the files that are known before the first round."""
        with self._writing():
            self._begin(experiment, plan, data, force)

    def _begin(self, experiment: Experiment, plan: Plan | None, data: str, force: bool) -> None:
        manifest = claim(self.folder, self.kind, force)
        for name in _ENDS:
            (self.folder / name).unlink(missing_ok=True)
        names = ["config.toml", "environment.json"]
        write_text(self.folder / "config.toml", experiment.to_toml())
        if experiment.clients.file is not None:
            names.append(CLIENTS_FILE)
            write_text(self.folder / CLIENTS_FILE, experiment.game.clients.to_csv())
        if plan is not None:
            names.append("plan.npz")
            write_plan_arrays(plan, self.folder / "plan.npz")
        self._rewrite([])
        facts = environment() | {"seed": experiment.training.seed, "data": data}
        write_text(self.folder / "environment.json", to_json(facts))
        self._begun = manifest.adding(*names)
        self._begun.write()

    def add(self, record: Record, durable: bool = False) -> None:
        """Append the metrics of a round; if `durable`, they are on the disk when this returns."""
        line = to_line(record)
        with self._writing():
            self._keep_metrics()
            with (self.folder / METRICS).open("a", encoding="utf-8") as stream:
                stream.write(line)
            if durable:
                sync(self.folder / METRICS)
        if self._in_memory:
            self._lines.append(line)
        self._size += len(line.encode())

    def _keep_metrics(self) -> None:
        """Rewrite all metrics if the file was removed or truncated."""
        path = self.folder / METRICS
        if not path.is_file() or path.stat().st_size != self._size:
            if not self._in_memory:
                raise InputError.of(str(path), f"of {self._size:,} bytes, as it was written", "another file")
            self._rewrite(self._lines)

    def _rewrite(self, lines: list[str]) -> None:
        text = "".join(lines)
        write_text(self.folder / METRICS, text)
        self._lines, self._size = lines if self._in_memory else [], len(text.encode())

    def checkpoint(self, state: Arrays) -> None:
        """Replace the checkpoint after syncing the metrics."""
        with self._writing():
            self._keep_metrics()
            sync(self.folder / METRICS)
            write_sealed(self.folder / "checkpoint.npz", state)

    def check_data(self, data: str) -> None:
        """Raise an error if the run is on other samples."""
        if self.environment().get("data") != data:
            raise InputError(f"{self.folder} holds a run on other samples: the dataset has changed")

    def resume(self) -> tuple[Arrays | None, list[Record]]:
        """Read the last checkpoint and the metrics up to it. Later metrics are removed."""
        with self._writing():
            return self._resume()

    def _resume(self) -> tuple[Arrays | None, list[Record]]:
        if not self.has_checkpoint:
            return None, self._cut(0)
        state = self.state()
        return state, self._cut(int(state["round"]))

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint."""
        return (self.folder / "checkpoint.npz").exists()

    def state(self) -> Arrays:
        """Read the last checkpoint."""
        path = self.folder / "checkpoint.npz"
        try:
            state = read_sealed(path)
            int(state["round"])
        except (KeyError, TypeError, ValueError) as error:
            advice = "remove it to let --resume start again from the first round"
            raise InputError(f"{path} must be an undamaged checkpoint: {error}; {advice}") from None
        return state

    def cut(self, rounds: int) -> list[Record]:
        """Read the metrics of the first `rounds` rounds. Later metrics are removed."""
        with self._writing():
            return self._cut(rounds)

    def _cut(self, rounds: int) -> list[Record]:
        records = read_metrics(self.folder)[:rounds]
        if len(records) < rounds:
            raise InputError.of(f"{self.folder}/{METRICS}", f"of {rounds} rounds", f"{len(records)}")
        self._rewrite([to_line(record) for record in records])
        self._begun = self.manifest
        return records

    def finish(self, weights: Named, summary: dict[str, Any]) -> None:
        """Write the model and the summary, and then the manifest that lists them."""
        from safetensors.numpy import save_file

        with self._writing(), replacing(self.folder / "model.safetensors") as temporary:
            save_file({name: np.ascontiguousarray(values) for name, values in weights.items()}, temporary)
        manifest = self._begun or self.manifest
        for name in manifest.files:
            manifest.check(name)  # a run whose configuration was lost in the meantime is incomplete
        with self._writing():
            self._keep_metrics()
            sync(self.folder / METRICS)
            write_text(self.folder / "summary.json", to_json(summary))
            manifest.adding("model.safetensors", "summary.json", METRICS).write()

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary of the run, if it has finished."""
        if not self.exists or "summary.json" not in self.manifest.files:
            return None
        return read_json(self.manifest, "summary.json")

    def environment(self) -> dict[str, Any]:
        """Read the software and hardware of the run."""
        return read_json(self.manifest, "environment.json")

    def records(self) -> list[Record]:
        """Read the records of the completed rounds."""
        records, manifest = read_metrics(self.folder), self.manifest
        if METRICS in manifest.files:
            manifest.check(METRICS)
        return records

    def weights(self) -> Named:
        """Read the weights of a finished run."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.manifest.check("model.safetensors")
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} must be the model of the run: {error}") from None
