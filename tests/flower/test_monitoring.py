"""Logs and metrics of a run: complete, true to the ledger, restored after a restart, and never in its way."""

import json
import logging
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from prometheus_client.parser import text_string_to_metric_families

from dufl.errors import InputError
from dufl.flower import messages
from dufl.flower.app import deployed_server
from dufl.flower.in_process import Answer, is_training
from dufl.flower.ledger import Claim, Ledger, Score
from dufl.flower.ledger_tables import accounts
from dufl.flower.messages import round_of
from dufl.flower.monitoring import JsonLog, json_log
from dufl.flower.prometheus import PrometheusExporter
from dufl.flower.server_store import Round
from flower_grid import SMALL, Run
from loading import load

Samples = dict[tuple[str, str], float]


def scrape(port: int) -> Samples:
    """All samples by name and the value of their only label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def greedy(client: int, message: Message, answer: Answer) -> Message | None:
    """Client 1 claims too much in the rounds 1 and 3; client 2 is away in round 2."""
    reply = answer()
    if is_training(message):
        round = round_of(message.content)
        if client == 2 and round == 2:
            return None
        if client == 1 and round in (1, 3):
            reply.content.config_records[messages.RECORD]["volume"] = 10**9
    return reply


class Scraper:
    """Scrapes after every round, as Prometheus does."""

    def __init__(self, exporter: PrometheusExporter) -> None:
        self.exporter = exporter
        self.seen: list[Samples] = []

    def __call__(self, _: Round) -> None:
        self.seen.append(scrape(self.exporter.port))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Samples], Path]:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "server").mkdir()
    exporter = PrometheusExporter(folder / "server", budget=10**6)
    scraper = Scraper(exporter)
    log = JsonLog(folder / "server")
    run = Run(folder, meddle=greedy, observers=[log, exporter, scraper])
    run.start()
    return run, scraper.seen, folder / "server"


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_round_is_logged_with_all_its_numbers(watched: tuple[Run, list[Samples], Path]) -> None:
    run, _, folder = watched
    rounds = [line for line in lines(folder) if line["event"] == "round"]
    assert [line["round"] for line in rounds] == list(range(5))
    with Ledger(folder / "ledger.sqlite") as ledger:
        for line, round in zip(rounds, run.rounds, strict=True):
            assert (line["level"], line["folder"]) == ("INFO", str(folder))
            assert datetime.fromisoformat(line["time"]).tzinfo == UTC
            assert line["volume"] == sum(claim["volume"] for claim in line["claims"]) == round.volume
            assert line["mean_age"] == round.mean_age
            assert line["entries"] == [vars(entry) for entry in ledger.entries(round.round)]
            assert (line["owed"], line["held"], line["unit"]) == (round.units, 0, "0.01")
            assert line["metrics"] == round.metrics
            assert line["metrics"]["accuracy"] > 0
            assert line["seconds"] > 0
            assert ledger.check(line["ledger_head"]).rounds == 5
            assert line["ledger_rounds"] == round.round + 1
    assert [line["missing"] for line in rounds] == [[], [], [2], [], []]
    assert [list(line["refused"]) for line in rounds] == [[], ["1"], [], ["1"], []]
    assert len({line["ledger_head"] for line in rounds}) == 5


def test_flowers_own_log_is_in_it(watched: tuple[Run, list[Samples], Path]) -> None:
    _, _, folder = watched
    found = [line for line in lines(folder) if line["event"] == "log"]
    heads = [line["message"] for line in found if line["message"].startswith("ledger: ")]
    with Ledger(folder / "ledger.sqlite") as ledger:
        assert heads[-1] == f"ledger: 5 rounds, head {ledger.head().hash}"
    assert len(heads) == 5
    assert any(line["message"].startswith("round 3 of 5: ") and line["round"] == 3 for line in found)
    assert set(found[0]) == {"time", "level", "event", "message", "round", "folder"}


def test_the_metrics_are_those_of_the_run(watched: tuple[Run, list[Samples], Path]) -> None:
    run, seen, folder = watched
    assert [samples["dufl_round", ""] for samples in seen] == [0, 1, 2, 3, 4]
    assert [samples["dufl_rounds_total", ""] for samples in seen] == [1, 2, 3, 4, 5]
    with Ledger(folder / "ledger.sqlite") as ledger:
        entries, total = ledger.entries(), ledger.total()
    for round, samples in zip(run.rounds, seen, strict=True):
        assert samples["dufl_metric", "accuracy"] == round.metrics["accuracy"]
        assert samples["dufl_metric", "loss"] == round.metrics["loss"]
        volumes = {claim.client: claim for claim in round.claims}
        for client, account in accounts([e for e in entries if e.round <= round.round]).items():
            label = str(client)
            assert samples["dufl_owed_total", label] == account.units / 100
            assert samples["dufl_held_total", label] == samples["dufl_escrow", label] == 0
            volume = volumes[client].volume if client in volumes else 0
            assert samples["dufl_volume_samples", label] == volume
            assert (("dufl_mean_age_rounds", label) in samples) == (client in volumes)
    last = seen[-1]
    assert last["dufl_spent", ""] == total / 100
    assert last["dufl_budget_left", ""] == pytest.approx(10**6 - total / 100, abs=1e-6)
    assert [last["dufl_refused_updates_total", str(k)] for k in range(4)] == [0, 2, 0, 0]
    assert [last["dufl_missing_replies_total", str(k)] for k in range(4)] == [0, 0, 1, 0]
    assert last["dufl_round_seconds_count", ""] == 5
    assert last["dufl_round_seconds_sum", ""] > last["dufl_last_round_seconds", ""] > 0
    assert any(name == "dufl_build_info" for name, _ in last)
    assert not any(name.endswith("_created") for name, _ in last)


def test_the_endpoint_stops_with_the_run(watched: tuple[Run, list[Samples], Path]) -> None:
    run, _, _ = watched
    exporter = next(o for o in run.strategy._observers if isinstance(o, PrometheusExporter))
    with pytest.raises(urllib.error.URLError):
        scrape(exporter.port)
    with socket.create_server(("127.0.0.1", exporter.port)):  # the port is free
        pass


def test_metrics_and_log_go_on_after_a_restart(watched: tuple[Run, list[Samples], Path]) -> None:
    """Counters are those of the ledger; a round that is repeated is not counted twice."""
    run, seen, folder = watched
    with PrometheusExporter(folder, budget=10**6) as exporter:
        before = scrape(exporter.port)
        for name in ("dufl_owed_total", "dufl_refused_updates_total", "dufl_missing_replies_total"):
            restored = {key: value for key, value in before.items() if key[0] == name}
            assert restored == {key: value for key, value in seen[-1].items() if key[0] == name}
        exporter(run.rounds[-1])
        after = scrape(exporter.port)
    assert after["dufl_owed_total", "0"] == seen[-1]["dufl_owed_total", "0"]
    assert after["dufl_rounds_total", ""] == 5
    known = lines(folder)
    with (folder / "log.jsonl").open("a") as stream:
        stream.write('{"time": "2026-')  # killed while it wrote
    with JsonLog(folder) as log:
        log(run.rounds[-1])
    text = (folder / "log.jsonl").read_text().splitlines()
    assert len(text) == len(known) + 2
    assert json.loads(text[-1])["round"] == 4
    (folder / "log.jsonl").write_text("\n".join(text[:-2]) + "\n")


def a_round(**others: Any) -> Round:
    deal: Any = None
    return Round(0, deal, **others)


def test_an_audit_is_shown(tmp_path: Path) -> None:
    scores = {0: Score(0.5, 0.25, 0.75), 1: Score(-1.0, -2.0, -0.5, "makes the model worse")}
    claims = [Claim(0, 30, 30, 1.5, 2), Claim(1, 10, 10, 2.5, 2)]
    with Ledger(tmp_path / "ledger.sqlite") as ledger, PrometheusExporter(tmp_path, budget=15.0) as exporter:
        entries = ledger.pay(0, 10.0, claims, rule="audited", scores=scores, budget=15.0)
        exporter(a_round(claims=claims, entries=entries, scores=scores, bounded={1: 12.5}))
        found = scrape(exporter.port)
        assert found["dufl_held_total", "1"] == found["dufl_escrow", "1"] == 2.5
        assert (found["dufl_owed_total", "0"], found["dufl_owed_total", "1"]) == (7.5, 0)
        names = ("dufl_audit_score_low", "dufl_audit_score", "dufl_audit_score_high")
        assert [found[name, "1"] for name in names] == [-2.0, -1.0, -0.5]
        assert found["dufl_scaled_updates_total", "1"] == 1
        assert found["dufl_refused_updates_total", "1"] == 0
        assert (found["dufl_spent", ""], found["dufl_budget_left", ""]) == (10, 5)
        ledger.settle(1, "forfeit", "sent noise")
        exporter(a_round(claims=claims, entries=entries, scores=scores))
        found = scrape(exporter.port)
        assert (found["dufl_escrow", "1"], found["dufl_budget_left", ""]) == (0, 7.5)


def test_a_port_in_use_is_an_error_at_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = Run(tmp_path, observers=[PrometheusExporter(tmp_path / "server", port)])
        with pytest.raises(InputError) as caught:
            run.start()
    assert (caught.value.field, caught.value.value) == ("metrics-port", port)
    assert not run.grid.sent
    with pytest.raises(InputError) as caught, PrometheusExporter(tmp_path, 0, "203.0.113.1"):
        pass
    assert caught.value.field == "metrics-host"
    for port in (-1, 65536):
        with pytest.raises(InputError) as caught:
            PrometheusExporter(tmp_path, port)
        assert caught.value.field == "metrics-port"


def test_an_observer_that_fails_does_not_stop_the_run(tmp_path: Path) -> None:
    def fail(round: Round) -> None:
        raise RuntimeError("no space left")

    rounds: list[Round] = []
    log = JsonLog(tmp_path / "server")
    run = Run(tmp_path, "game.num_rounds=2", observers=[fail, log, rounds.append])
    run.start()
    assert [round.round for round in rounds] == [0, 1]
    warnings = [line["message"] for line in lines(tmp_path / "server") if line["level"] == "WARNING"]
    assert len(warnings) == 2
    assert "failed in round 1: RuntimeError('no space left')" in warnings[1]


def test_a_log_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(InputError) as caught, JsonLog(tmp_path):
        pass
    assert "log.jsonl" in str(caught.value)
    with pytest.raises(InputError) as caught:
        json_log("xml", tmp_path)
    assert caught.value.field == "log"


def test_a_log_may_be_rotated(
    tmp_path: Path, watched: tuple[Run, list[Samples], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", False)  # pytest-xdist cannot send surrogates
    with JsonLog(tmp_path) as log:
        log(watched[0].rounds[0])
        (tmp_path / "log.jsonl").rename(tmp_path / "log.jsonl.1")
        logging.getLogger("flwr").warning("odd: %s \ud800 %s", float("nan"), "ü")
    assert len((tmp_path / "log.jsonl.1").read_text().splitlines()) == 1
    (line,) = lines(tmp_path)
    assert (line["level"], line["message"]) == ("WARNING", "odd: nan ? ü")


STDERR = """
import sys
from flwr.common.logger import log
from dufl.flower.monitoring import JsonLog
log(20, "before")
try:
    with JsonLog(sys.argv[1], file=False, stderr=True):
        log(20, "inside")
        raise RuntimeError("the end")
except RuntimeError:
    log(20, "after")
"""


def test_the_log_on_stderr_replaces_flowers_lines(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", STDERR, str(tmp_path)], capture_output=True, text=True)
    found = [line for line in done.stderr.splitlines() if line.startswith("{")]
    assert [json.loads(line)["message"] for line in found] == [
        "inside",
        "the run ends: RuntimeError('the end')",
    ]
    assert [line for line in done.stderr.splitlines() if "inside" in line] == found[:1]
    assert all(any(word in line for line in done.stderr.splitlines()) for word in ("before", "after"))
    assert not list(tmp_path.iterdir())


def test_an_app_of_your_own_can_be_watched(tmp_path: Path) -> None:
    """Observers get metrics of any kind."""
    metrics = dict(MetricRecord({"perplexity": 12.5, "per_class": [0.1, 0.2]}))
    with Ledger(tmp_path / "ledger.sqlite") as ledger, PrometheusExporter(tmp_path) as exporter:
        entries = ledger.pay(0, 1.0, [], {0: "no reply"})
        exporter(a_round(metrics=metrics, entries=entries))
        found = scrape(exporter.port)
    assert found["dufl_metric", "perplexity"] == 12.5
    assert ("dufl_metric", "per_class") not in found
    assert ("dufl_budget_left", "") not in found


@pytest.mark.parametrize(
    ("field", "value"),
    [("log", "xml"), ("metrics-port", "9100"), ("metrics-port", 70000), ("metrics-port", True)],
)
def test_settings_of_a_deployment(tmp_path: Path, field: str, value: Any) -> None:
    (tmp_path / "config.toml").write_text(load(None, list(SMALL)).to_toml())
    config = {"config": str(tmp_path / "config.toml"), "folder": str(tmp_path / "run"), field: value}
    context = Context(1, 1, {}, RecordDict(), config)
    grid: Any = None
    with pytest.raises(InputError) as caught:
        deployed_server()(grid, context)
    assert caught.value.field == field
    assert not (tmp_path / "run").exists()
