"""What the server keeps on disk: the deal, a checkpoint after every round, and the metrics of all rounds."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from logging import INFO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp.strategy import Result, Strategy

from dufl.errors import InputError
from dufl.experiment.arrays import read_sealed, write_sealed
from dufl.experiment.files import from_json, replacing, sync, to_json, write_text
from dufl.experiment.service import Unit
from dufl.flower.deal import Deal
from dufl.flower.ledger import Claim, Entry, Head, Ledger, Score
from dufl.flower.messages import AnyArray, from_arrays, to_arrays
from dufl.flower.service import Schedule

_METRICS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


@runtime_checkable
class Stateful(Protocol):
    """A strategy with state besides the model, which must survive a restart of the server."""

    def state(self) -> Mapping[str, AnyArray]:
        """The state, as arrays by name."""

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Continue from a state."""


@dataclass
class Round:
    """The outcome of a round.

    Attributes:
        round: t, from 0.
        deal: the deal that applies to it.
        claims: of the clients whose updates were used, by client.
        refused: the clients whose updates were refused, and why.
        missing: the clients that did not reply.
        unselected: the clients that the strategy did not select.
        bounded: the clients whose updates were scaled down, with their size relative to the median.
        entries: what the ledger has recorded for the round, by client.
        scores: what the audit says about the clients, if there is one.
        unit: of the amounts in the entries.
        ledger_head: the end of the ledger after the round, with the head of its hash chain.
        metrics: of the server's own evaluation.
        began: when it began, by `time.perf_counter`.
    """

    round: int
    deal: Deal
    claims: list[Claim] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    unselected: list[int] = field(default_factory=list)
    bounded: dict[int, float] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    scores: dict[int, Score] = field(default_factory=dict)
    unit: Unit = field(default_factory=Unit)
    ledger_head: Head = field(default_factory=Head)
    metrics: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter, repr=False, compare=False)

    @property
    def volume(self) -> int:
        """The number of samples of all claims."""
        return sum(claim.volume for claim in self.claims)

    @property
    def units(self) -> int:
        """What is owed or held for the round, in units."""
        return sum(entry.owed + entry.held for entry in self.entries)

    @property
    def held(self) -> int:
        """What is held back of it, in units."""
        return sum(entry.held for entry in self.entries)

    @property
    def payment(self) -> float:
        """What is owed or held for the round: R, or less if nobody was paid or the budget was spent."""
        agreed = self.deal.offer.payment
        if self.units and self.units == self.unit.count(agreed):
            return agreed
        return float(self.unit.value(self.units))

    @property
    def mean_age(self) -> float:
        """The mean age of the samples of all claims; 1 if there are none."""
        aged = sum(round(claim.volume * claim.mean_age) for claim in self.claims)  # ages are integers
        return aged / self.volume if self.volume else 1.0


class ServerStore:
    """The directory in which a server that was killed finds everything to resume."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._deal = folder / "deal.json"
        self._checkpoint = folder / "server.npz"
        self._results = folder / "results.jsonl"
        self._negotiating = folder / "negotiating"

    @property
    def has_deal(self) -> bool:
        """Whether a deal has been made."""
        return self._deal.exists()

    @property
    def is_negotiating(self) -> bool:
        """Whether a negotiation has begun and not ended: clients may have left the deal for another one."""
        return self._negotiating.exists()

    def begin_negotiation(self) -> None:
        """Take note of a negotiation, before the first message of it."""
        write_text(self._negotiating, "")

    def end_negotiation(self) -> None:
        """The negotiation is over: the deal on disk is that of the clients."""
        self._negotiating.unlink(missing_ok=True)

    def save_deal(self, deal: Deal) -> None:
        """Write a deal, which ends the negotiation."""
        write_text(self._deal, deal.to_json())
        self.end_negotiation()

    def load_deal(self, schedule: Schedule, round: int) -> Deal:
        """Read the deal, which must be one of a run with this schedule that has come to a round."""
        try:
            deal = Deal.from_json(self._deal.read_text(encoding="utf-8"))
            planned = deal.num_rounds
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self._deal} must be undamaged: {error!r}", field=str(self._deal)) from None
        if not schedule.endless and planned != schedule.total:
            raise InputError.of("num_rounds", f"{planned}, as in the run in {self.folder}", schedule.total)
        if schedule.endless and planned - deal.first_round != schedule.window:
            rule = f"{planned - deal.first_round}, as in the run in {self.folder}"
            raise InputError.of("num_rounds", rule, schedule.window)
        if not deal.first_round <= round <= planned:
            rule = f"a deal that covers round {round}, which is next"
            raise InputError.of(str(self._deal), rule, f"{deal.first_round} … {planned - 1}")
        return deal

    def ledger(self, unit: Unit | None = None) -> Ledger:
        """The ledger, open. A new one is in `unit`; the one that is there must be, if it is given."""
        return Ledger(self.folder / "ledger.sqlite", unit)

    def save_checkpoint(
        self, strategy: Strategy, rounds: int, arrays: ArrayRecord, server: Mapping[str, AnyArray]
    ) -> None:
        """Write the model, the state of the strategy and that of the server after `rounds` rounds."""
        state = strategy.state() if isinstance(strategy, Stateful) else {}
        values = {f"array {name}": value for name, value in from_arrays(arrays).items()}
        values |= {f"state {name}": _without_objects(name, value) for name, value in state.items()}
        values |= {f"server {name}": value for name, value in server.items()}
        write_sealed(self._checkpoint, values | {"round": np.array(rounds)})

    def load_checkpoint(
        self, strategy: Strategy, initial: ArrayRecord
    ) -> tuple[int, ArrayRecord, dict[str, AnyArray]]:
        """Restore the strategy; returns the number of finished rounds, the model and the server's state."""
        values = self._read()
        rounds = int(values.pop("round"))
        if not rounds:
            return 0, initial, {}
        state, model, server = (
            {name.removeprefix(kind): value for name, value in values.items() if name.startswith(kind)}
            for kind in ("state ", "array ", "server ")
        )
        if set(model) != set(initial):
            path = str(self._checkpoint)
            raise InputError.of(path, f"a checkpoint of a model with {sorted(initial)}", sorted(model))
        if isinstance(strategy, Stateful):
            strategy.restore(state)
        log(INFO, "resumed after round %s", rounds)
        return rounds, to_arrays({name: model[name] for name in initial}), server

    def add_results(self, round: int, results: Result) -> None:
        """Append the metrics of a round."""
        tables = {kind: getattr(results, kind)[round] for kind in _METRICS if round in getattr(results, kind)}
        line = to_json({"round": round} | {kind: dict(each) for kind, each in tables.items()}, indent=None)
        with self._results.open("a", encoding="utf-8") as stream:
            stream.write(line)
        sync(self._results)

    def load_results(self, rounds: int, last: int | None = None) -> Result:
        """The metrics of the first rounds; those of later ones are removed from the file.

        Args:
            rounds: the number of rounds that are over.
            last: how many of them to return, if not all; the last ones.
        """
        results = Result()
        if not rounds or not self._results.exists():
            self._results.unlink(missing_ok=True)
            return results
        number = 0
        try:
            with replacing(self._results) as temporary, temporary.open("w", encoding="utf-8") as kept:
                for line in _lines(self._results):
                    number += 1
                    values = from_json(line)
                    if (round := int(values["round"])) <= rounds:
                        kept.write(line)
                        _add(results, round, values)
                    if last is not None:
                        forget(results, round - last)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            path = self._results
            raise InputError(f"{path} must be undamaged: {error!r}", field=str(path)) from None
        return results

    @property
    def rounds_done(self) -> int:
        """The number of finished rounds in the checkpoint."""
        return int(self._read()["round"])

    def _read(self) -> dict[str, AnyArray]:
        if not self._checkpoint.exists():
            return {"round": np.array(0)}
        try:
            values = read_sealed(self._checkpoint)
            int(values["round"])
        except (ValueError, KeyError, TypeError) as error:
            path = self._checkpoint
            raise InputError(f"{path} must be an undamaged checkpoint: {error}", field=str(path)) from None
        return values


def _without_objects(name: str, value: Any) -> AnyArray:
    """An array that can be read without running code."""
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise InputError.of(f"{name!r} in the state of the strategy", "an array of numbers", repr(value))
    return array


def forget(results: Result, round: int) -> None:
    """Remove the metrics of a round from results in memory."""
    for kind in _METRICS:
        getattr(results, kind).pop(round, None)


def _add(results: Result, round: int, values: Mapping[str, Any]) -> None:
    for kind in _METRICS:
        if kind in values:
            numbers = {name: math.nan if v is None else v for name, v in values[kind].items()}
            getattr(results, kind)[round] = MetricRecord(numbers)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file, except for a last one that is not complete: the server was killed meanwhile."""
    with path.open(encoding="utf-8") as stream:
        yield from (line for line in stream if line.endswith("\n"))
