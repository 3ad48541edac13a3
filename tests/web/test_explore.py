"""The explorer without a browser: fields and configuration, the command that does the same, messages."""

import json
import shlex
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from dufl import Clients, InputError, LogNormal, Uniform
from dufl.web.answer import baseline_plan, optimum_of, plan_json, plan_of, surface_of, trajectories_csv
from dufl.web.choices import Choices, Question, beginning
from dufl.web.serve import address_of, free_port, is_local, settings
from dufl.web.source import ClientsFile, Source, begin, uploaded
from dufl.web.spread import KINDS, LISTED, Spread
from loading import load

SMALL = "[game]\nnum_rounds = 12\n[clients]\ncount = 5\n"
PEOPLE = "initial_volume,collection_cost,training_cost\n100,1e-3,1e-5\n200,2e-3,2e-5\n300,5e-4,5e-5\n"
RICH: dict[str, dict[str, Any]] = {
    "game": {"num_rounds": 12, "decay": 0.99, "volume_weight": 2.0, "payment_range": [1, 300]},
    "clients": {"count": 3, "initial_staleness": 2.0, "capacity": 9000, "training_cost": [1e-5, 2e-5, 3e-5]},
    "leader": {"evaluations": 12, "seed": 3},
    "data": {"dataset": "mine.npz", "skew": 0.5},
    "training": {"epochs": 7, "policy": "static"},
}


def question(toml: str = SMALL, people: ClientsFile | None = None, **changes: Any) -> Question:
    source = uploaded(toml.encode(), "federation.toml", people)
    return Question(source, replace(beginning(source), **changes))


def people_file(text: str = PEOPLE) -> ClientsFile:
    return ClientsFile("people.csv", text.encode())


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that a command needs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text(SMALL)
    (tmp_path / "people.csv").write_text(PEOPLE)
    return tmp_path


QUESTIONS = {
    "nothing changed": question(),
    "numbers": question(time_sensitivity=1.2, payment_weight=3e-4, sampling_noise=0.5, num_rounds=9),
    "clients": question(count=7, seed=3, initial_volume=Spread("uniform", 10.0, 500.0)),
    "costs": question(
        collection_cost=Spread("log-uniform", 1e-4, 1e-2), training_cost=Spread("log-normal", 1e-5, 0.4)
    ),
    "exact, little money": question(competition="nash", largest_payment=20.0),
    "algorithm 1": question(method="algorithm1", search="direct", damping=0.5),
    "payment pinned": question(payment=30.0),
    "rate pinned": question(conservation_rate=0.8),
    "both pinned": question(payment=30.0, conservation_rate=0.8, time_sensitivity=1.0),
    "clients of a file": question("[game]\nnum_rounds = 12\n", people_file(), time_sensitivity=1.0),
    "clients that the file names": question('[clients]\nfile = "people.csv"\n', people_file(), num_rounds=12),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_command_plans_the_same(
    name: str, there: Path, dufl_command: Callable[..., tuple[int, str, str]]
) -> None:
    asked = QUESTIONS[name]
    (there / "federation.toml").write_text(asked.source.toml)
    program, *arguments = shlex.split(asked.command())
    assert program == "dufl"
    code, out, err = dufl_command(*arguments, "--json")
    assert (code, err) == (0, "")
    assert out == plan_json(asked)


def test_the_command_says_no_more_than_it_must() -> None:
    start = Source()
    asked = Question(start, beginning(start))
    assert asked.command() == "dufl plan"
    moved = replace(asked, choices=replace(asked.choices, time_sensitivity=1.0, payment=60.0))
    assert moved.command() == "dufl plan --set game.time_sensitivity=1.0 --payment 60.0"
    assert QUESTIONS["clients of a file"].files() == ["federation.toml", "people.csv"]


def test_a_csv_file_in_the_place_of_other_keys_needs_the_saved_file(
    there: Path, dufl_command: Callable[..., tuple[int, str, str]]
) -> None:
    asked = question(SMALL, people_file(), time_sensitivity=1.0)
    assert asked.files() == ["dufl.toml", "people.csv"]
    (there / "dufl.toml").write_text(asked.config().to_toml("people.csv"))
    code, out, _ = dufl_command(*shlex.split(asked.command())[1:], "--json")
    assert (code, out) == (0, plan_json(asked))


def test_what_has_no_field_is_kept() -> None:
    """The saved file is the loaded one with the changes, whatever else is in it."""
    asked = question(tomli_w.dumps(RICH), time_sensitivity=1.1)
    again = uploaded(asked.config().to_toml().encode(), "dufl.toml", None).config()
    assert again.game.time_sensitivity == 1.1
    for section, values in RICH.items():
        part = getattr(again, section)
        for key, value in values.items():
            found = getattr(part, key)
            assert (list(found) if isinstance(found, tuple) else found) == value
    assert again == asked.config().model_copy(update={"game": again.game})


def test_a_file_on_disk_starts_the_page(there: Path) -> None:
    (there / "deep").mkdir()
    (there / "deep" / "people.csv").write_text(PEOPLE)
    path = Path("deep/config.toml")
    path.write_text('[clients]\nfile = "people.csv"\n[data]\ndataset = "mine.npz"\n[game]\nnum_rounds = 12\n')
    source = begin(path)
    assert source.config().data == load(path).data
    assert Question(source, beginning(source)).command() == "dufl plan deep/config.toml"
    assert source.config().game.clients.to_csv() == load(path).game.clients.to_csv()


def test_an_uploaded_file_reads_nothing_from_this_machine(there: Path) -> None:
    with pytest.raises(InputError, match=r"give people\.csv too"):
        question('[clients]\nfile = "people.csv"\n')


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (b"[game\n", "federation.toml must be valid TOML: .*line 1"),
        (b"", "federation.toml must not be empty"),
        (b"\xff", "federation.toml must be a readable TOML file"),
        (b"[game]\nnum_round = 3", "unknown key 'num_round' in .game.: did you mean 'num_rounds'?"),
        (b"[game]\nnum_rounds = 1", r"federation.toml: game.num_rounds must be >= 2, got 1"),
        (b"[clients]\ncount = 2\nfile = 'people.csv'", "count must be left out when file is given"),
    ],
)
def test_a_broken_toml_file_is_explained(toml: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        uploaded(toml, "federation.toml", people_file() if b"people" in toml else None)


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"count": 0}, "count", "count must be >= 1, got 0"),
        ({"num_rounds": 1}, "num_rounds", "num_rounds must be >= 2, got 1"),
        ({"count": 10**6}, "count", "count times num_rounds must be <= 10,000,000 on this page"),
        ({"seed": -1}, "seed", "seed must be >= 0, got -1"),
        ({"largest_payment": -5.0}, "largest_payment", "payment_range must be .low, high."),
        ({"collection_cost": Spread("uniform", 2e-3, 1e-3)}, "collection_cost", "low must be <= high"),
        ({"collection_cost": Spread("uniform", -1.0, 0.0)}, "collection_cost", "collection_cost must be > 0"),
        ({"training_cost": Spread("log-normal", -1.0, 1.0)}, "training_cost", "median must be > 0"),
        ({"initial_volume": Spread("the same for all", 0.0)}, "initial_volume", "initial_volume must be > 0"),
        ({"count": 1, "competition": "nash"}, "competition", "competition must be 'mean-field' with"),
    ],
    ids=str,
)
def test_a_wrong_value_is_explained_beside_its_field(
    changes: dict[str, Any], field: str, message: str
) -> None:
    rounds = {"num_rounds": 100} if changes.get("count") == 10**6 else {}
    with pytest.raises(InputError, match=message) as found:
        question(**(changes | rounds)).config()
    assert found.value.field == field


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
    spread = Spread.of(value)
    asked = question(collection_cost=spread)
    assert Spread.of(asked.config().clients.collection_cost) == spread
    for kind in KINDS:
        if kind != LISTED:
            other = question(collection_cost=spread.turned(kind))
            drawn = other.config().game.clients.collection_cost
            assert 0.2 < drawn.min() <= drawn.max() < 50


def test_answers_are_what_they_say() -> None:
    asked = question()
    pinned = replace(
        asked, choices=replace(asked.choices, payment=40.0, method="algorithm1", search="direct")
    )
    best = optimum_of(pinned)
    assert best is optimum_of(asked)
    assert best is plan_of(asked)
    assert plan_of(pinned).payment == 40.0
    baseline = baseline_plan(pinned)
    assert baseline is not None
    assert baseline.server_cost >= best.server_cost
    surface = surface_of(pinned)
    assert surface is surface_of(asked)
    assert surface.costs.shape == (surface.payments.size, surface.rates.size)
    assert surface.payments[-1] > max(best.payment, baseline.payment)
    assert surface.costs.min() == pytest.approx(best.server_cost, rel=0.05)
    assert surface.costs.min() >= best.server_cost * 0.999
    wide = surface_of(replace(asked, choices=replace(asked.choices, payment=499.0)))
    assert wide.payments[-1] >= 499


def test_courses_are_the_plan_s() -> None:
    plan = plan_of(question())
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
    found = json.loads(plan_json(question()))
    assert found["num_clients"] == 5
    assert found["certificate_holds"] is True


def test_choices_are_read_from_any_configuration() -> None:
    found = Choices.of(load(None, ["clients.training_cost=[1e-5, 2e-5]", "clients.count=2"]))
    assert found.training_cost == Spread(LISTED, 1e-5, 2e-5)
    assert found.count == 2
    assert Clients.parse_csv(PEOPLE.encode(), "people.csv").size == 3
