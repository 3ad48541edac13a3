"""The explorer on recorded data: which recording, how many periods, and whether the plan asks too much."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from dufl.data.datasets import load_recording
from dufl.web import streamlit_app
from dufl.web.plans import plan_of
from dufl.web.recorded import about_recording
from dufl.web.request import Request, initial_values
from dufl.web.source import Source, open_source, upload_source

RECORDED = """
[game]
num_rounds = 12
[clients]
count = 5
initial_volume = {volume}
[data]
dataset = "weather"
kind = "recorded"
warm_up = 0.2
"""
Written = Callable[[float], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(volume: float) -> Path:
        path = tmp_path / "federation.toml"
        path.write_text(RECORDED.format(volume=volume))
        return path

    return write


def request(source: Source) -> Request:
    return Request(source, initial_values(source))


def test_what_was_recorded_is_beside_what_is_planned(written: Written) -> None:
    asked = request(open_source(written(5000.0)))
    plan = plan_of(asked)
    about = about_recording(asked.source, asked.experiment(), plan)
    assert about is not None
    assert load_recording("weather").describe() in about.text
    assert "12 rounds" in about.text
    times = load_recording("weather").times
    edges = times[0] + np.linspace(0.2, 1.0, 13) * (times[-1] - times[0])
    collectable = int(((times >= edges[0]) & (times < edges[11])).sum())  # not those of the last period
    values = {label: float(value.replace(",", "")) for label, value, _ in about.facts}
    assert values["Recorded"] == pytest.approx(collectable / 11 / 5, abs=0.06)
    assert values["Planned"] == pytest.approx(plan.collection[:-1].mean(), abs=0.06)
    assert values["Before round 0"] == pytest.approx((times < edges[0]).sum() / 5, abs=0.06)
    assert any("before round 0" in warning for warning in about.warnings)


def test_a_plan_that_asks_for_too_much_is_warned_of_and_another_is_not(written: Written) -> None:
    source = open_source(written(100.0))
    values = initial_values(source)
    for payment, warned in ((300.0, True), (0.5, False)):
        one = Request(source, type(values)(**{**vars(values), "payment": payment, "conservation_rate": 0.5}))
        about = about_recording(source, one.experiment(), plan_of(one))
        assert about is not None
        assert any("more than was recorded" in warning for warning in about.warnings) is warned


def test_an_uploaded_file_reads_no_recording(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    content = written(100.0).read_bytes()
    monkeypatch.setattr("dufl.web.recorded._load", lambda _: pytest.fail("it was read"))
    asked = request(upload_source(content, "federation.toml", None))
    about = about_recording(asked.source, asked.experiment(), plan_of(asked))
    assert about is not None
    assert about.facts == ()
    assert "weather" in about.text
    assert "12 rounds" in about.text
    assert "not read" in about.text


def test_a_file_on_disk_that_is_replaced_by_an_upload_reads_nothing(written: Written) -> None:
    local = open_source(written(100.0))
    assert local.is_local
    assert not upload_source(local.toml.encode(), local.name, None).is_local


def test_simulated_data_has_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text("[game]\nnum_rounds = 12\n[clients]\ncount = 5\n")
    asked = request(open_source(tmp_path / "plain.toml"))
    assert about_recording(asked.source, asked.experiment(), plan_of(asked)) is None


def test_a_recording_that_is_missing_leaves_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(RECORDED.format(volume=100.0).replace("weather", "nowhere.csv"))
    asked = request(open_source(path))
    about = about_recording(asked.source, asked.experiment(), plan_of(asked))
    assert about is not None
    assert len(about.warnings) == 1
    assert "nowhere.csv" in about.text


def test_the_page_shows_it(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["streamlit_app.py", str(written(100.0))])
    tab = AppTest.from_file(streamlit_app.__file__, default_timeout=60).run()
    assert not tab.exception
    assert "Recorded data" in [header.value for header in tab.header]
    assert any("weather" in markdown.value for markdown in tab.markdown)
    command = tab.code[0].value
    assert command == f"dufl plan {written(100.0)}"
