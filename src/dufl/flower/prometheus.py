"""The numbers of a run for Prometheus, at http://HOST:PORT/metrics.

Amounts are in the currency of the ledger. What is counted over rounds is restored from the ledger when a
server is started again, except for updates that were scaled down, which the ledger does not know.
"""

import errno
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import INFO
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING

from flwr.common.logger import log
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from dufl import __version__
from dufl.errors import InputError
from dufl.experiment.service import Unit
from dufl.flower.ledger import Entry, Ledger
from dufl.flower.payment import NO_REPLY
from dufl.flower.server_store import Round

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

Value = float | None
Family = Callable[..., CounterMetricFamily | GaugeMetricFamily]


@dataclass
class _Client:
    """What is known about a client. Amounts are in units."""

    owed: int = 0
    held: int = 0
    released: int = 0
    refused: int = 0
    missing: int = 0
    scaled: int = 0
    escrow: int = 0
    volume: int | None = None
    mean_age: float | None = None
    score: float | None = None
    low: float | None = None
    high: float | None = None

    def add(self, entry: Entry) -> None:
        self.owed += entry.owed
        self.held += entry.held
        self.released += entry.released
        self.refused += entry.is_refused
        self.missing += entry.reason == NO_REPLY
        if entry.score is not None:
            self.score, self.low, self.high = entry.score, entry.low, entry.high


class PrometheusExporter(Collector):
    """An observer that serves the numbers of a run over HTTP while it runs.

    Args:
        folder: of the run, with its ledger.
        port: to listen on; 0 for any free port, which is logged.
        host: to listen on. There is no authentication: let nobody else reach it.
        budget: of the run; None if there is none.
    """

    def __init__(
        self, folder: str | Path, port: int = 0, host: str = "127.0.0.1", *, budget: float | None = None
    ) -> None:
        if not 0 <= port <= 65535:
            raise InputError.of("metrics-port", "in [0, 65535]", port)
        self.port = port
        self._host = host
        self._ledger = Path(folder) / "ledger.sqlite"
        self._budget = budget
        self._clients: dict[int, _Client] = defaultdict(_Client)
        self._counted: set[int] = set()  # rounds
        self._unit = Unit()
        self._total, self._head = 0, ""
        self._left: int | None = None
        self._last: Round | None = None
        self._ended = 0.0
        self._seconds, self._rounds, self._duration = 0.0, 0, 0.0  # of this process
        self._families: list[Metric] = []
        self._server: tuple[WSGIServer, Thread] | None = None

    def __enter__(self) -> "PrometheusExporter":
        if self._ledger.exists():
            with Ledger(self._ledger) as ledger:
                self._counted = set(ledger.rounds())
                for entry in ledger.entries():
                    self._clients[entry.client].add(entry)
                self._read(ledger)
        self._families = list(self._describe())
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = start_http_server(self.port, self._host, registry)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise InputError.of("metrics-port", f"a free port of {self._host}", self.port) from None
            raise InputError.of("metrics-host", "an address of this machine", self._host) from None
        self.port = int(self._server[0].server_port)
        log(INFO, "metrics for Prometheus at http://%s:%s/metrics", self._host, self.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
        self._server = None

    def __call__(self, round: Round) -> None:
        """Update the numbers after a round."""
        self._last, self._ended = round, time.time()
        self._duration = time.perf_counter() - round.began
        self._seconds, self._rounds = self._seconds + self._duration, self._rounds + 1
        if round.round not in self._counted:  # a server that was killed repeats a round
            self._counted.add(round.round)
            for entry in round.entries:
                self._clients[entry.client].add(entry)
        for client in round.bounded:
            self._clients[client].scaled += 1
        claims = {claim.client: claim for claim in round.claims}
        for client in {*self._clients, *claims}:
            claim, own = claims.get(client), self._clients[client]
            own.volume, own.mean_age = (claim.volume, claim.mean_age) if claim else (0, None)
        with Ledger(self._ledger) as ledger:
            self._read(ledger)
        self._families = list(self._describe())

    def collect(self) -> Iterable[Metric]:
        """The numbers after the last round."""
        return self._families

    def _read(self, ledger: Ledger) -> None:
        """Read what an operator may have changed."""
        self._unit, self._total, self._head = ledger.unit, ledger.total(), ledger.head().hash
        self._left = None if self._budget is None else ledger.left(self._budget)
        escrow = ledger.escrow()
        for client in {*self._clients, *escrow}:
            self._clients[client].escrow = escrow.get(client, 0)

    def _describe(self) -> Iterable[Metric]:
        labels = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily("dufl_build", "The versions of the server.", labels)
        chain = {"unit": str(self._unit), "head": self._head}
        yield InfoMetricFamily("dufl_ledger", "The unit of the ledger and the head of its hash chain.", chain)
        yield CounterMetricFamily("dufl_rounds", "Rounds in the ledger.", len(self._counted))
        yield from self._of_rounds()
        yield from self._of_money()
        yield from self._of_clients()

    def _of_rounds(self) -> Iterable[Metric]:
        if self._counted:
            number = max(self._counted)
            yield GaugeMetricFamily("dufl_round", "The last round, counted from 0.", number)
        text = "Duration of the rounds since the start."
        yield SummaryMetricFamily("dufl_round_seconds", text, self._rounds, self._seconds)
        if self._last is None:
            return
        text = "When the last round ended."
        yield GaugeMetricFamily("dufl_last_round_timestamp_seconds", text, self._ended)
        text = "Duration of the last round."
        yield GaugeMetricFamily("dufl_last_round_seconds", text, self._duration)
        text = "Result of the server's evaluation after the last round."
        metrics = GaugeMetricFamily("dufl_metric", text, labels=["name"])
        for name, value in self._last.metrics.items():
            if isinstance(value, int | float):
                metrics.add_metric([name], value)
        yield metrics

    def _of_money(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("dufl_spent", "Owed and held over all rounds.", self._money(self._total))
        if self._left is not None:
            yield GaugeMetricFamily(
                "dufl_budget_left", "What is left of the budget.", self._money(self._left)
            )

    def _of_clients(self) -> Iterable[Metric]:
        counter, gauge = CounterMetricFamily, GaugeMetricFamily
        rows: list[tuple[Family, str, str, Callable[[_Client], Value]]] = [
            (counter, "dufl_owed", "Owed at once.", lambda c: self._money(c.owed)),
            (counter, "dufl_held", "Held back in escrow.", lambda c: self._money(c.held)),
            (counter, "dufl_released", "Released by the audit.", lambda c: self._money(c.released)),
            (gauge, "dufl_escrow", "Held back now.", lambda c: self._money(c.escrow)),
            (counter, "dufl_refused_updates", "Updates that were refused.", lambda c: c.refused),
            (counter, "dufl_missing_replies", "Rounds without a reply.", lambda c: c.missing),
            (counter, "dufl_scaled_updates", "Updates scaled down, since the start.", lambda c: c.scaled),
            (gauge, "dufl_volume_samples", "Volume in the last round.", lambda c: c.volume),
            (gauge, "dufl_mean_age_rounds", "Mean age in the last round.", lambda c: c.mean_age),
            (gauge, "dufl_audit_score", "What its updates contribute.", lambda c: c.score),
            (gauge, "dufl_audit_score_low", "Lower bound of the score.", lambda c: c.low),
            (gauge, "dufl_audit_score_high", "Upper bound of the score.", lambda c: c.high),
        ]
        for family, name, text, value in rows:
            metric = family(name, text, labels=["client"])
            for client, own in sorted(self._clients.items()):
                number = value(own)
                if number is not None:
                    metric.add_metric([str(client)], number)
            yield metric

    def _money(self, units: int) -> float:
        return float(self._unit.value(units))
