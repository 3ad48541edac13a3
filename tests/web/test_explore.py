"""The explorer without a browser: fields and configuration, the command that does the same, messages."""

import json
import math
import shlex
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from dufl import Clients, InputError, LogNormal, Uniform
from dufl.web.plans import (
    baseline_plan,
    frontier_around,
    optimum_of,
    paper_plan,
    plan_json,
    plan_of,
    surface_of,
    trajectories_csv,
)
from dufl.web.request import FROM_FILE, KINDS, NO_LIMIT, ColumnValue, FormValues, Request, initial_values
from dufl.web.serve import address_of, free_port, is_local, settings
from dufl.web.source import ClientsFile, Source, open_source, upload_source
from dufl.web.text import headline
from loading import load

SMALL = "[game]\nnum_rounds = 12\n[clients]\ncount = 5\n"
CLIENTS = "initial_volume,collection_cost,training_cost\n100,1e-3,1e-5\n200,2e-3,2e-5\n300,5e-4,5e-5\n"
RICH: dict[str, dict[str, Any]] = {
    "game": {"num_rounds": 12, "decay": 0.99, "volume_weight": 2.0, "payment_range": [1, 300]},
    "clients": {"count": 3, "initial_staleness": 2.0, "capacity": 9000, "training_cost": [1e-5, 2e-5, 3e-5]},
    "leader": {"evaluations": 12, "seed": 3},
    "data": {"dataset": "mine.npz", "dirichlet_alpha": 0.5},
    "training": {"local_epochs": 7},
}


def request_for(toml: str = SMALL, clients_file: ClientsFile | None = None, **changes: Any) -> Request:
    source = upload_source(toml.encode(), "federation.toml", clients_file)
    return Request(source, replace(initial_values(source), **changes))


def clients_csv(text: str = CLIENTS) -> ClientsFile:
    return ClientsFile("clients.csv", text.encode())


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that a command needs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text(SMALL)
    (tmp_path / "clients.csv").write_text(CLIENTS)
    return tmp_path


REQUESTS = {
    "nothing changed": request_for(),
    "numbers": request_for(time_sensitivity=1.2, payment_weight=3e-4, sampling_noise=0.5, num_rounds=9),
    "clients": request_for(count=7, seed=3, initial_volume=ColumnValue("uniform", 10.0, 500.0)),
    "costs": request_for(
        collection_cost=ColumnValue("log-uniform", 1e-4, 1e-2),
        training_cost=ColumnValue("log-normal", 1e-5, 0.4),
    ),
    "Nash, low maximum": request_for(competition="nash", max_payment=20.0),
    "algorithm 1": request_for(method="algorithm1", search="direct", damping=0.5),
    "capacities and prices": request_for(
        initial_volume=ColumnValue("constant", 100.0),
        capacity=ColumnValue("uniform", 110.0, 140.0),
        collection_price=ColumnValue("constant", 0.01),
        training_price=ColumnValue("log-normal", 0.001, 0.3),
    ),
    "a limit taken away": request_for(f"{SMALL}capacity = 1200\n", capacity=ColumnValue.of(None)),
    "voluntary": request_for(
        participation="voluntary",
        initial_volume=ColumnValue("uniform", 50.0, 1500.0),
        reservation=ColumnValue("constant", 2.0),
    ),
    "voluntary, fixed": request_for(participation="voluntary", payment=30.0, conservation_rate=0.8),
    "payment fixed": request_for(payment=30.0),
    "rate fixed": request_for(conservation_rate=0.8),
    "both fixed": request_for(payment=30.0, conservation_rate=0.8, time_sensitivity=1.0),
    "clients of a file": request_for("[game]\nnum_rounds = 12\n", clients_csv(), time_sensitivity=1.0),
    "clients that the file names": request_for(
        '[clients]\nfile = "clients.csv"\n', clients_csv(), num_rounds=12
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_command_plans_the_same(
    name: str, there: Path, dufl_command: Callable[..., tuple[int, str, str]]
) -> None:
    request = REQUESTS[name]
    (there / "federation.toml").write_text(request.source.toml)
    program, *arguments = shlex.split(request.command())
    assert program == "dufl"
    code, out, err = dufl_command(*arguments, "--json")
    assert (code, err) == (0, "")
    assert out == plan_json(request)


def test_the_command_says_no_more_than_it_must() -> None:
    start = Source()
    request = Request(start, initial_values(start))
    assert request.command() == "dufl plan"
    moved = replace(request, values=replace(request.values, time_sensitivity=1.0, payment=60.0))
    assert moved.command() == "dufl plan --set game.time_sensitivity=1.0 --payment 60.0"
    assert REQUESTS["clients of a file"].files() == ["federation.toml", "clients.csv"]


def test_a_csv_file_in_the_place_of_other_keys_needs_the_saved_file(
    there: Path, dufl_command: Callable[..., tuple[int, str, str]]
) -> None:
    request = request_for(SMALL, clients_csv(), time_sensitivity=1.0)
    assert request.files() == ["dufl.toml", "clients.csv"]
    (there / "dufl.toml").write_text(request.experiment().to_toml("clients.csv"))
    code, out, _ = dufl_command(*shlex.split(request.command())[1:], "--json")
    assert (code, out) == (0, plan_json(request))


def test_what_has_no_field_is_kept() -> None:
    """The saved file is the loaded one with the changes, whatever else is in it."""
    request = request_for(tomli_w.dumps(RICH), time_sensitivity=1.1)
    again = upload_source(request.experiment().to_toml().encode(), "dufl.toml", None).experiment()
    assert again.game.time_sensitivity == 1.1
    for section, values in RICH.items():
        part = getattr(again, section)
        for key, value in values.items():
            found = getattr(part, key)
            assert (list(found) if isinstance(found, tuple) else found) == value
    assert again == request.experiment().model_copy(update={"game": again.game})


def test_a_file_on_disk_starts_the_page(there: Path) -> None:
    (there / "deep").mkdir()
    (there / "deep" / "clients.csv").write_text(CLIENTS)
    path = Path("deep/config.toml")
    path.write_text(
        '[clients]\nfile = "clients.csv"\n[data]\ndataset = "mine.npz"\n[game]\nnum_rounds = 12\n'
    )
    source = open_source(path)
    assert source.experiment().data == load(path).data
    assert Request(source, initial_values(source)).command() == "dufl plan deep/config.toml"
    assert source.experiment().game.clients.to_csv() == load(path).game.clients.to_csv()


def test_an_uploaded_file_reads_nothing_from_this_machine(there: Path) -> None:
    with pytest.raises(InputError, match=r"upload clients\.csv too") as raised:
        request_for('[clients]\nfile = "clients.csv"\n')
    assert raised.value.field == "clients.file"


@pytest.mark.parametrize(
    ("toml", "field", "message"),
    [
        (b"[game\n", "", "federation.toml must be valid TOML: .*line 1"),
        (b"", "", "federation.toml must not be empty"),
        (b"\xff", "", "federation.toml must be a readable TOML file"),
        (
            b"[game]\nnum_round = 3",
            "game.num_round",
            "'num_round' in .game.: did you mean 'num_rounds'?",
        ),
        (b"[game]\nnum_rounds = 1", "game.num_rounds", "^federation.toml: game.num_rounds"),
        (b"[clients]\nfile = 5", "clients.file", "^federation.toml: clients.file"),
        (b"[clients]\ncount = 2\nfile = 'clients.csv'", "clients.count", "^federation.toml: clients.count"),
    ],
)
def test_a_broken_toml_file_is_explained(toml: bytes, field: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        upload_source(toml, "federation.toml", clients_csv() if b"clients.csv" in toml else None)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"count": 0}, "count", ">= 1"),
        ({"num_rounds": 1}, "num_rounds", ">= 2"),
        ({"count": 10**6}, "count", "at most 10,000,000 / num_rounds in the explorer"),
        ({"seed": -1}, "seed", ">= 0"),
        ({"max_payment": -5.0}, "max_payment", "[low, high] with 0 <= low <= high"),
        ({"collection_cost": ColumnValue("uniform", 2e-3, 1e-3)}, "collection_cost", "<= high"),
        ({"collection_cost": ColumnValue("uniform", -1.0, 0.0)}, "collection_cost", "> 0"),
        ({"training_cost": ColumnValue("log-normal", -1.0, 1.0)}, "training_cost", "> 0"),
        ({"initial_volume": ColumnValue("constant", 0.0)}, "initial_volume", "> 0 for at least one client"),
        ({"count": 1, "competition": "nash"}, "competition", "'mean-field' with a single client"),
    ],
    ids=str,
)
def test_a_wrong_value_is_explained_beside_its_field(changes: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(InputError) as raised:
        request_for(**changes).experiment()
    assert (raised.value.field, raised.value.rule) == (field, rule)
    key = {"max_payment": "payment_range"}.get(field, field)
    assert str(raised.value).startswith(key)  # without the section of the TOML file


def test_a_large_csv_file_is_refused_beside_the_number_of_clients() -> None:
    request = request_for("[game]\nnum_rounds = 12\n", clients_csv(), num_rounds=10**7)
    with pytest.raises(InputError) as raised:
        request.experiment()
    assert (raised.value.field, raised.value.value) == ("count", 3)


def test_changes_are_values_by_dotted_key() -> None:
    request = request_for(
        num_rounds=9, max_payment=20.0, competition="nash", training_cost=ColumnValue("log-normal", 1e-5, 0.4)
    )
    assert request.changes() == {
        "game.num_rounds": 9,
        "game.payment_range": [0.0, 20.0],
        "leader.competition": "nash",
        "clients.training_cost": {"median": 1e-5, "spread": 0.4},
    }
    assert request_for().changes() == {}


@pytest.mark.parametrize(
    "value",
    [
        5.0,
        Uniform(low=1.0, high=3.0),
        Uniform(low=1.0, high=3.0, scale="log"),
        LogNormal(median=2.0, spread=0.1),
    ],
)
def test_a_spread_goes_into_the_file_and_comes_back(value: Any) -> None:
    spread = ColumnValue.of(value)
    request = request_for(collection_cost=spread)
    assert ColumnValue.of(request.experiment().clients.collection_cost) == spread
    for kind in KINDS:
        if kind != FROM_FILE:
            other = request_for(collection_cost=spread.converted(kind))
            drawn = other.experiment().game.clients.collection_cost
            assert 0.2 < drawn.min() <= drawn.max() < 50


def test_a_capacity_may_have_no_limit() -> None:
    unlimited = initial_values(Source()).capacity
    assert unlimited == ColumnValue.of(None) == ColumnValue.of(math.inf)
    for kind in KINDS:
        if kind != FROM_FILE:
            limited = request_for(
                initial_volume=ColumnValue("constant", 10.0), capacity=unlimited.converted(kind)
            )
            assert np.isfinite(limited.experiment().game.clients.capacity).all()
            assert limited.values.capacity.converted(NO_LIMIT) == unlimited
    assert "clients.capacity=inf" in REQUESTS["a limit taken away"].command()


@pytest.mark.parametrize("value", [0.0, -5.0, 3.0])
def test_any_reservation_becomes_any_kind(value: float) -> None:
    for kind in KINDS:
        if kind != FROM_FILE:
            request_for(reservation=ColumnValue("constant", value).converted(kind)).experiment()


def test_algorithm1_is_no_baseline_where_clients_choose() -> None:
    assert baseline_plan(REQUESTS["voluntary"]) is None
    with pytest.raises(InputError, match="participation must be 'mandatory'"):
        plan_of(request_for(participation="voluntary", method="algorithm1", search="direct"))


def test_downloads_of_a_voluntary_plan_are_those_of_the_plan() -> None:
    plan = plan_of(REQUESTS["voluntary"])
    assert plan.staying_away
    rows = [line.split(",") for line in trajectories_csv(plan).splitlines()[1:]]
    held = np.array([float(row[2]) for row in rows]).reshape(5, 12).T
    np.testing.assert_allclose(held, plan.volume, rtol=1e-9)


def test_answers_are_what_they_say() -> None:
    request = request_for()
    fixed = replace(
        request, values=replace(request.values, payment=40.0, method="algorithm1", search="direct")
    )
    best = optimum_of(fixed)
    assert best is optimum_of(request)
    assert best is plan_of(request)
    assert plan_of(fixed).payment == 40.0
    baseline = baseline_plan(fixed)
    assert baseline is not None
    assert baseline.server_cost >= best.server_cost
    surface = surface_of(fixed)
    assert surface is surface_of(request)
    assert surface.costs.shape == (surface.payments.size, surface.rates.size)
    assert surface.payments[-1] > max(best.payment, baseline.payment)
    assert surface.costs.min() == pytest.approx(best.server_cost, rel=0.05)
    assert surface.costs.min() >= best.server_cost * 0.999
    wide = surface_of(replace(request, values=replace(request.values, payment=499.0)))
    assert wide.payments[-1] >= 499


def test_trajectories_are_those_of_the_plan() -> None:
    plan = plan_of(request_for())
    lines = trajectories_csv(plan).splitlines()
    assert lines[0] == "client,round,volume,collection,staleness"
    assert len(lines) == 1 + 5 * 12
    client, round_, *values = lines[1 + 3 * 12 + 7].split(",")
    assert (client, round_) == ("3", "7")
    expected = [plan.volume[7, 3], plan.collection[7, 3], plan.staleness[7, 3]]
    assert [float(value) for value in values] == pytest.approx(expected)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"^port must be free on 127.0.0.1, got {port}, which is in use"):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", None) >= 8501
    with pytest.raises(InputError, match=r"^host must be an address of this machine, got 192\.0\.2\.1"):
        free_port("192.0.2.1", None)


def test_the_page_stays_on_this_machine() -> None:
    options = settings("127.0.0.1", 8501, open_browser=False)
    assert options["browser_gatherUsageStats"] is False
    assert options["server_address"] == options["browser_serverAddress"] == "127.0.0.1"
    assert options["server_headless"] is True
    assert settings("0.0.0.0", 1, True)["browser_serverAddress"] == "127.0.0.1"
    assert address_of("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert address_of("::1", 80) == "http://[::1]:80"
    assert [is_local(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0")] == [True] * 3 + [False]


def test_without_streamlit_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, dufl_command: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = dufl_command("explore")
    assert (code, out) == (2, "")
    assert err == "error: dufl explore needs Streamlit: pip install 'dufl[web]'\n"


def test_a_wrong_file_is_told_before_anything_starts(
    there: Path, dufl_command: Callable[..., tuple[int, str, str]]
) -> None:
    (there / "wrong.toml").write_text("[game]\nnum_rounds = 1\n")
    code, _, err = dufl_command("explore", "wrong.toml")
    assert code == 2
    assert err == "error: wrong.toml: game.num_rounds must be >= 2, got 1\n"


def test_everything_the_page_says_is_json_for_programs() -> None:
    found = json.loads(plan_json(request_for()))
    assert found["num_clients"] == 5
    assert found["certificate_holds"] is True


def test_choices_are_read_from_any_configuration() -> None:
    found = FormValues.of(load(None, ["clients.training_cost=[1e-5, 2e-5]", "clients.count=2"]))
    assert found.training_cost == ColumnValue(FROM_FILE, 1e-5, 2e-5)
    assert found.count == 2
    assert Clients.parse_csv(CLIENTS.encode(), "clients.csv").size == 3


def test_the_frontier_of_a_calibrated_law() -> None:
    loss = {"floor": 0.1, "volume_weight": 0.3, "volume_exponent": 0.5, "noise": 0.01}
    game = {"num_rounds": 12, "loss": loss, "payment_weight": 1e-5, "conservation_range": [0.0, 0.9]}
    request = request_for(tomli_w.dumps({"game": game, "clients": {"count": 5}}))
    frontier, paper = frontier_around(request), paper_plan(request)
    assert frontier is not None
    assert paper is not None
    assert frontier_around(replace(request, values=replace(request.values, payment=3.0))) is frontier
    assert "predicted accuracy" in headline(plan_of(request))
    assert frontier_around(request_for()) is None
    assert paper_plan(request_for()) is None
    assert "predicted" not in headline(plan_of(request_for()))
