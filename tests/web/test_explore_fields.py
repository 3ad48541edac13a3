"""The fields and files of the explorer's page, moved as a visitor does, without a browser."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dufl.web import streamlit_app
from dufl.web.text import escape_markdown

SMALL = "[game]\nnum_rounds = 12\n[clients]\ncount = 5\n"
CLIENTS = "initial_volume,collection_cost,training_cost\n100,1e-3,1e-5\n200,2e-3,2e-5\n300,5e-4,5e-5\n"

Opened = Callable[[str], AppTest]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Start the page with a file."""

    def start(toml: str) -> AppTest:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "federation.toml").write_text(toml)
        monkeypatch.setattr(sys, "argv", ["streamlit_app", "federation.toml"])
        return AppTest.from_file(streamlit_app.__file__, default_timeout=60).run()

    return start


@pytest.fixture
def tab(opened: Opened) -> AppTest:
    """The page, started with a small federation."""
    return opened(SMALL)


def shown(tab: AppTest) -> dict[str, str]:
    assert not tab.exception
    return {figure.label: figure.value for figure in tab.metric}


def test_fields_move_the_plan(tab: AppTest) -> None:
    before = shown(tab)
    assert list(before) == [
        "Payment R per round",
        "Conservation rate θ",
        "Server cost U",
        "U vs. no update",
        "U vs. Algorithm 1",
    ]
    tab.slider(key="time_sensitivity").set_value(0.5).run()
    after = shown(tab)
    assert float(after["Payment R per round"]) < float(before["Payment R per round"])
    assert float(after["Conservation rate θ"]) > float(before["Conservation rate θ"])
    assert tab.code[0].value == "dufl plan federation.toml --set game.time_sensitivity=0.5"
    tab.selectbox(key="collection_cost_kind").set_value("log-normal").run()
    assert not tab.exception
    assert "'clients.collection_cost={median=0.000316, spread=0.576}'" in tab.code[0].value
    tab.selectbox(key="method").set_value("algorithm1").run()
    tab.selectbox(key="search").set_value("direct").run()
    assert "Algorithm 1" in tab.caption[0].value
    assert shown(tab)


def columns(tab: AppTest) -> list[str]:
    return list(tab.dataframe[0].value)


def test_capacities_and_prices(tab: AppTest) -> None:
    before = columns(tab)
    assert "full rounds" not in before
    tab.selectbox(key="initial_volume_kind").set_value("constant").run()
    tab.number_input(key="initial_volume_first").set_value(100.0).run()
    tab.selectbox(key="capacity_kind").set_value("constant").run()
    assert tab.number_input(key="capacity_first").value == 2000.0
    assert columns(tab) == before
    tab.number_input(key="capacity_first").set_value(120.0).run()
    tab.number_input(key="collection_price_first").set_value(0.01).run()
    assert shown(tab)
    assert columns(tab) == [*before, "full rounds", "shadow price"]
    assert any("full buffer in some round" in note.value for note in tab.info)
    for change in ("clients.capacity=120.0", "clients.collection_price=0.01"):
        assert change in tab.code[0].value
    tab.number_input(key="capacity_first").set_value(50.0).run()
    assert any("capacity" in error.value for error in tab.error)
    tab.selectbox(key="capacity_kind").set_value("no limit").run()
    assert columns(tab) == before
    assert "capacity" not in tab.code[0].value
    assert not tab.error


def test_voluntary_participation(tab: AppTest) -> None:
    before = columns(tab)
    tab.selectbox(key="participation").set_value("voluntary").run()
    tab.number_input(key="reservation_first").set_value(20.0).run()
    assert columns(tab) == [*before, "takes part", "cost of keeping"]
    assert shown(tab)["U vs. Algorithm 1"] == "–"
    away = list(tab.dataframe[0].value["takes part"]).count("no")
    assert f"{5 - away} of 5 clients take part" in tab.caption[0].value
    assert "--set game.participation=voluntary" in tab.code[0].value
    assert "--set clients.reservation=20.0" in tab.code[0].value
    tab.selectbox(key="participation").set_value("mandatory").run()
    tab.selectbox(key="participation").set_value("voluntary").run()
    assert tab.number_input(key="reservation_first").value == 20.0


def test_clients_of_a_csv_file_may_stay_away(opened: Opened) -> None:
    tab = opened("[game]\nnum_rounds = 12\n")
    tab.file_uploader(key="csv_file").upload("mine.csv", CLIENTS.encode(), "text/csv").run()
    assert not [field for field in tab.selectbox if field.key == "capacity_kind"]
    tab.selectbox(key="participation").set_value("voluntary").run()
    assert shown(tab)


def test_a_pin_starts_at_the_optimum_and_leaves_it(tab: AppTest) -> None:
    best = shown(tab)
    tab.toggle(key="fix_conservation_rate").set_value(True).run()
    rate = tab.slider(key="conservation_rate")
    assert rate.value == pytest.approx(float(best["Conservation rate θ"]), abs=0.006)
    rate.set_value(0.9).run()
    assert shown(tab)["Conservation rate θ"] == "0.900"
    assert "from optimum" in tab.metric[2].delta
    tab.toggle(key="fix_payment").set_value(True).run()
    assert tab.code[0].value.endswith("--conservation-rate 0.9")
    assert "--payment" in tab.code[0].value
    tab.toggle(key="fix_payment").set_value(False).run()
    tab.toggle(key="fix_conservation_rate").set_value(False).run()
    assert shown(tab) == best


@pytest.mark.parametrize(
    "toml",
    [
        "[game]\nnum_rounds = 2\n[clients]\ncount = 1\n",
        "[game]\ntime_sensitivity = 0.0\nnum_rounds = 5\n",
        "[game]\npayment_weight = 1.0\nsampling_noise = 0.0\nnum_rounds = 5\n",
        "[game]\npayment_range = [20, 20]\nnum_rounds = 5\n",
        "[game]\npayment_range = [0, 0]\nconservation_range = [0, 0]\nnum_rounds = 5\n",
    ],
)
def test_the_edges_of_the_game_have_a_page_too(toml: str, opened: Opened) -> None:
    tab = opened(toml)
    assert shown(tab)
    tab.toggle(key="fix_payment").set_value(True).run()
    tab.slider(key="payment").set_value(0.0).run()
    tab.toggle(key="fix_conservation_rate").set_value(True).run()
    tab.slider(key="conservation_rate").set_value(0.0).run()
    assert shown(tab)
    assert not tab.error


def test_a_wrong_field_leaves_the_last_plan(tab: AppTest) -> None:
    before = shown(tab)
    tab.number_input(key="count").set_value(0).run()
    assert shown(tab) == before
    beside, above = (next(iter(part.error)).value for part in (tab.sidebar, tab.main))
    assert beside == escape_markdown("count must be >= 1, got 0")
    assert above == f"{beside}. The page shows the last valid plan."
    tab.number_input(key="count").set_value(6).run()
    assert not tab.error
    assert shown(tab) != before


def test_a_plan_that_does_not_fit_is_explained(opened: Opened) -> None:
    tab = opened("[game]\nnum_rounds = 12\n[clients]\ncapacity = 1500\n")
    before = shown(tab)
    tab.toggle(key="fix_payment").set_value(True).run()
    tab.slider(key="payment").set_value(500.0).run()
    tab.number_input(key="initial_volume_first").set_value(2000.0).run()
    assert tab.error[0].value.startswith(
        escape_markdown("initial_volume must be <= capacity = 1500 of client 0, got 2000.0")
    )
    assert shown(tab)
    assert before


def give(tab: AppTest, key: str, name: str, text: str | None) -> list[str]:
    """Upload a file, or take it away; the messages in the sidebar."""
    file = None if text is None else (name, text.encode(), "text/plain")
    tab.file_uploader(key=key).set_value(file).run()
    assert not tab.exception
    return [error.value for error in tab.sidebar.error]


def test_files_come_and_go_in_any_order(tab: AppTest) -> None:
    names = '[game]\nnum_rounds = 9\n[clients]\nfile = "clients.csv"\n'
    wanting = [escape_markdown("upload clients.csv too: [clients] file refers to it")]
    assert give(tab, "toml_file", "named.toml", names) == wanting
    assert "5 clients · 12 rounds" in tab.caption[0].value
    assert give(tab, "csv_file", "clients.csv", CLIENTS) == []
    assert "3 clients · 9 rounds" in tab.caption[0].value
    assert tab.code[0].value == "dufl plan named.toml"
    assert give(tab, "csv_file", "clients.csv", None) == wanting
    assert "3 clients · 9 rounds" in tab.caption[0].value
    assert give(tab, "toml_file", "named.toml", None) == []
    assert "5 clients · 12 rounds" in tab.caption[0].value
    assert tab.code[0].value == "dufl plan federation.toml"


def test_a_csv_file_gives_the_fields_back_when_it_goes(tab: AppTest) -> None:
    tab.number_input(key="count").set_value(6).run()
    assert give(tab, "csv_file", "clients.csv", CLIENTS) == []
    assert "3 clients" in tab.caption[0].value
    tab.slider(key="time_sensitivity").set_value(0.5).run()
    assert "dufl.toml" in tab.code[0].value
    assert give(tab, "csv_file", "clients.csv", None) == []
    assert "6 clients" in tab.caption[0].value
    assert tab.number_input(key="count").value == 6
    short = "initial_volume,collection_cost,training_cost\n"
    assert give(tab, "csv_file", "short.csv", short) == [
        escape_markdown("short.csv must have a header and at least one client, got 1 lines")
    ]
    assert give(tab, "csv_file", "wrong.csv", short + "1,-1,1\n") == [
        escape_markdown("wrong.csv: collection_cost must be > 0, got -1 for client 0")
    ]
    assert "6 clients" in tab.caption[0].value
    assert len(give(tab, "toml_file", "other.toml", "[game]\nnum_rounds = 7\n")) == 1
    assert "15 clients · 7 rounds" in tab.caption[0].value
