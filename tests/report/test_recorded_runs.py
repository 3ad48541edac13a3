"""What a person sees of recorded runs: means over time, scores without a model, missing samples, dates."""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from browser import NARROW, WIDE, browse, needs_chromium
from dufl.experiment.callbacks import Action, TensorBoard
from dufl.experiment.compare import compare, grid
from dufl.experiment.comparison import Comparison
from dufl.experiment.recorded import asked, collected
from dufl.experiment.stored import group, read_runs
from dufl.experiment.train import Run, train
from dufl.report.comparison_files import comparison_csv
from dufl.report.figures import plot_comparison, plot_run
from dufl.report.run_charts import WINDOW, moving_mean
from dufl.report.tables import comparison_table, run_html, run_table
from dufl.report.training_report import write_report
from loading import load
from recorded import WEATHER, compared, levels, pump, run, write_pump
from reports import Page, make_run, metrics, report
from results import read_lines, write_lines

POLICIES = ("static", "keep-all", "fresh-only", "window-3", "dufl")


def shown(renderable: Any) -> str:
    stream = io.StringIO()
    Console(file=stream, width=130).print(renderable)
    return stream.getvalue()


def assert_no_nan(text: str) -> None:
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)


def table(page: Page, name: str) -> dict[str, list[str]]:
    """The CSV file of a chart, by column, as text."""
    heads, *rows = csv.reader(io.StringIO(page.charts[name]["csv"]))
    return {head: [row[i] for row in rows] for i, head in enumerate(heads)}


@pytest.fixture(scope="module")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compared(tmp_path_factory.mktemp("weather"), WEATHER, POLICIES, seeds=2)


@pytest.fixture(scope="module")
def weather_page(weather: Path) -> Page:
    return report(weather, out=weather / "report.html")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pump(tmp_path_factory.mktemp("pump") / "pump.csv")


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Path:
    return compared(tmp_path_factory.mktemp("dated"), pump(file), POLICIES)


@pytest.fixture(scope="module")
def regressions(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Path:
    return compared(tmp_path_factory.mktemp("levels"), levels(file), ("static", "keep-all", "dufl"), 2)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(grid(load(None, WEATHER), (), POLICIES), seeds=2)


def free_scores_of_the_file() -> dict[str, list[float]]:
    """Accuracy of the last and of the most frequent label per period, from the raw file and by hand."""
    with np.load(str(files("dufl.data.datasets") / "weather.npz")) as arrays:
        labels, times = arrays["y"].astype(int), arrays["time"].astype(float)
    span = times[-1] - times[0]
    edges = [times[0] + span * (0.1 + 0.9 * t / 12) for t in range(12)]
    first = [int((times < edge).sum()) for edge in edges] + [len(times)]
    no_change, majority = [], []
    for a, b in pairwise(first):
        before = labels[:a].tolist()
        most = max(sorted(set(before)), key=before.count)
        no_change.append(sum(labels[i] == labels[i - 1] for i in range(a, b)) / (b - a))
        majority.append(sum(labels[i] == most for i in range(a, b)) / (b - a))
    return {"no change": no_change, "majority class": majority}


def test_free_baselines_are_those_of_the_raw_file(weather: Path, weather_page: Page) -> None:
    truth = free_scores_of_the_file()
    for label, values in truth.items():
        assert [float(v) for v in table(weather_page, "accuracy")[label]] == pytest.approx(
            [100 * value for value in values]
        )
        assert f"{label} {100 * np.mean(values):.2f} %" in weather_page.text
    text = shown(run_table(Run.load(weather / "fedavg-keep-all-0")))
    for label, values in truth.items():
        (line,) = [line for line in text.splitlines() if label in line]
        assert f"{100 * np.mean(values):.2f} %" in line


def test_the_table_of_a_run(weather: Path) -> None:
    one = run(*WEATHER, "policy=dufl")
    accuracy = [record.accuracy for record in one.records]
    text = shown(run_table(one))
    assert f"mean test accuracy {100 * np.mean(accuracy):.2f} % over 12 rounds" in text
    assert f"{100 * accuracy[-1]:.2f} % in the last" in text
    missing = sum(record.shortfall for record in one.records)
    assert missing > 0
    assert f"{missing:,} of {asked(one):,} ({100 * missing / asked(one):.1f} %)" in text  # type: ignore[operator]
    assert "test accuracy per round" in text
    assert f"mean accuracy {100 * np.mean(accuracy):.2f} %" in repr(one)
    assert "without a model" in run_html(one)
    assert_no_nan(text + repr(one) + run_html(one))
    assert "recorded time" not in shown(run_table(run("game.num_rounds=3", "clients.count=3")))


def test_what_was_asked_for_is_what_joined_and_what_is_missing() -> None:
    """Against the streams themselves: what a policy asks them for, counted on the way."""
    counted: list[int] = []

    class Watched:
        def __init__(self, pool: Any, client: int, seed: int) -> None:
            self._client, self._own = client, np.arange(client, len(pool.labels), 4)

        def collect(self, count: int, round: int) -> Any:
            counted.append(count)
            edge = int(1815.8 + (round + 1) * (18158 - 1815.8) / 12)
            return self._own[self._own < max(edge, 1)][: min(count, 40)]

    experiment = load(None, (*WEATHER, "policy=dufl"))
    one = train(experiment.replace(data=experiment.data.replace(stream=Watched)))
    assert asked(one) == sum(counted)
    assert sum(record.shortfall for record in one.records) == sum(max(0, n - 40) for n in counted)


@pytest.mark.parametrize("policy", ["keep-all", "fresh-only", "window-3"])
def test_windows_collect_everything_that_there_is(policy: str) -> None:
    one = run(*WEATHER, f"policy={policy}")
    periods = [record.period.samples for record in one.records if record.period]
    assert collected(one.records, policy, None, 0) == periods[:-1]


def test_the_table_of_a_comparison(comparison: Comparison) -> None:
    text = shown(comparison_table(comparison.cells))
    assert_no_nan(text)
    truth = free_scores_of_the_file()
    for cell in comparison.cells:
        means = [np.mean([r.accuracy for r in one.records]) for one in cell.runs]
        (line,) = [line for line in text.splitlines() if f" {cell.policy} " in line]
        assert f"{100 * np.mean(means):.2f}" in line
        assert f"{100 * np.std(means, ddof=1):.2f}" in line
        summary = cell.summary()
        assert summary["accuracy_std"] == pytest.approx(np.std(means, ddof=1))
        assert summary["mean_accuracy"] == pytest.approx(np.mean(means))
        missing = [sum(r.shortfall for r in one.records) for one in cell.runs]
        assert summary["shortfall"] == np.mean(missing)
        assert f"{np.mean(missing):,.0f}" in line
        assert (summary["time_begin"], summary["time_end"]) == (pytest.approx(1815.8), 18158.0)
    for label, values in truth.items():
        (line,) = [line for line in text.splitlines() if label in line]
        assert f"{100 * np.mean(values):.2f}" in line
    assert_no_nan(repr(comparison))
    frame = comparison.to_frame()
    assert {"mean_accuracy", "shortfall", "time_begin", "time_end", "no_change_accuracy"} <= set(frame)


def test_the_csv_of_a_comparison(comparison: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(comparison_csv(comparison.cells))))
    assert len(rows) == len(POLICIES) * 2 * 12
    for policy in POLICIES:
        some = [row for row in rows if row["policy"] == policy and row["seed"] == "1"]
        accuracy = [float(row["accuracy"]) for row in some]
        means = [np.mean(accuracy[: t + 1]) for t in range(12)]
        assert [float(row["mean_accuracy"]) for row in some] == pytest.approx(means)
        assert all(a["time_end"] == b["time_begin"] for a, b in pairwise(some))
        records = comparison[f"fedavg-{policy}"].runs[1].records
        assert [int(row["shortfall"]) for row in some] == [record.shortfall for record in records]
        assert {row["rmse"] for row in some} == {""}


def test_simulated_comparisons_have_no_more_columns() -> None:
    short = load(None, ("game.num_rounds=3", "clients.count=3", "training.local_epochs=1"))
    plain = compare(grid(short))
    assert "time_begin" not in comparison_csv(plain.cells)
    assert not {"mean_accuracy", "shortfall", "time_begin"} & set(plain.cells[0].summary())
    frame = plain.cells[0].runs[0].to_frame()
    hidden = {"time_begin", "time_end", "tested", "no_change", "majority", "shortfall", "period"}
    assert not hidden & set(frame.columns)


def test_a_comparison_of_recorded_runs_is_resumed(tmp_path: Path) -> None:
    wanted = grid(load(None, (*WEATHER, "clients.initial_volume=5000")), (), ("static", "keep-all"))
    first = compare(wanted, seeds=2, out=tmp_path / "all")
    again = compare(wanted, seeds=2, out=tmp_path / "all", resume=True)
    assert [cell.summary() for cell in again.cells] == [cell.summary() for cell in first.cells]


def test_seeds_are_one_group_although_they_deal_samples_differently(tmp_path: Path) -> None:
    """Clients start with what they recorded; who recorded a sample depends on the seed."""
    settings = (*WEATHER, "clients.initial_volume=5000", "clients.count=7")
    folder = compared(tmp_path / "all", settings, ("static", "keep-all"), seeds=3)
    volumes = {tuple(Run.load(place).records[0].volumes) for place in folder.iterdir()}
    assert len(volumes) > 1
    assert [len(one.runs) for one in group(read_runs([folder]))] == [3, 3]
    page = report(folder, out=tmp_path / "r.html")
    assert "dufl compare" not in page.text  # no one command makes these runs again
    assert "dufl train config.toml --out again" in page.text


def test_frames_have_the_time(weather: Path, dated: Path) -> None:
    frame = Run.load(weather / "fedavg-dufl-0").to_frame()
    assert frame.time_begin.iloc[0] == pytest.approx(1815.8)
    assert frame.tested.sum() == 18_159 - 1816
    assert frame.shortfall.tolist() == metrics(weather / "fedavg-dufl-0", "shortfall").tolist()
    truth = free_scores_of_the_file()
    assert frame.no_change.tolist() == pytest.approx(truth["no change"])
    assert frame.majority.tolist() == pytest.approx(truth["majority class"])
    times = Run.load(dated / "fedavg-dufl-0").to_frame()
    assert times.time_begin.dtype.kind == times.time_end.dtype.kind == "M"
    assert times.time_end.iloc[:-1].tolist() == times.time_begin.iloc[1:].tolist()
    assert str(times.time_end.iloc[-1]).startswith("2024-05-")


def test_the_page_says_which_policy_is_best(weather: Path, weather_page: Page) -> None:
    def mean(policy: str) -> float:
        return float(np.mean([metrics(weather / f"fedavg-{policy}-{s}", "accuracy") for s in (0, 1)]))

    means = {policy: mean(policy) for policy in POLICIES}
    best = max(means, key=means.__getitem__)
    assert best not in ("dufl", "static")
    lede = f"Best result: {best}, mean test accuracy is {100 * means[best]:.1f} % over 12 rounds"
    assert lede in weather_page.text
    static, difference = 100 * means["static"], 100 * (means[best] - means["static"])
    assert f"without data update, {static:.1f} % (+{difference:.1f} percentage" in weather_page.text
    found = weather_page.table("Mean accuracy over the rounds")
    assert len(found.rows) == len(POLICIES)
    names = {"dufl": "with data update", "static": "without data update"}
    for policy, value in means.items():
        place = [row[0] for row in found.rows].index(names.get(policy, policy))
        assert found.values[place][2] == pytest.approx(100 * value)
    assert "one per round" in weather_page.text
    assert "18,159 recorded samples" in weather_page.text


def test_a_free_baseline_that_beats_every_model_is_told(tmp_path: Path) -> None:
    """Labels that change rarely, and features that say nothing about them."""
    generator = np.random.default_rng(0)
    labels = np.repeat(generator.permutation(np.arange(60) % 2), 20)
    x = generator.normal(size=(1200, 2)).astype(np.float32)
    np.savez(tmp_path / "sticky.npz", x=x, y=labels, time=np.arange(1200.0))
    settings = (f"dataset={tmp_path / 'sticky.npz'}", "clients.count=3", "game.num_rounds=12")
    folder = compared(tmp_path / "all", settings, ("static", "keep-all"))
    page = report(folder, out=tmp_path / "r.html")
    told = "a prediction without a model: predicting the previous label has"
    assert f"None of these models beats {told}" in page.text
    alone = report(folder / "fedavg-static-0", out=tmp_path / "one.html")
    assert f"The model does not beat {told}" in alone.text


def test_charts_are_drawn_over_time(weather: Path, weather_page: Page, dated: Path) -> None:
    frame = table(weather_page, "accuracy")
    begin, end = (np.array(frame[name], float) for name in ("time_begin", "time_end"))
    for name in ("accuracy", "loss", "cost_so_far", "volume", "staleness", "classes", "shortfall"):
        figure = weather_page.charts[name]
        assert figure["layout"]["xaxis"]["title"]["text"] == "recorded time"
        assert figure["data"][-1]["x"] == pytest.approx(((begin + end) / 2).tolist())
    page = report(dated, out=dated / "report.html")
    figure = page.charts["accuracy"]
    assert figure["layout"]["xaxis"]["type"] == "date"
    assert figure["data"][0]["x"] == sorted(figure["data"][0]["x"])
    assert figure["data"][0]["x"][0].startswith("2024-01-")
    assert table(page, "accuracy")["time_end"][-1].startswith("2024-05-")
    run_figure = plot_run(Run.load(dated / "fedavg-dufl-0"))
    run_figure.draw_without_rendering()
    labels = [label.get_text() for label in run_figure.axes[0].get_xticklabels()]
    assert {"Feb", "Mar", "Apr"} <= set(labels)


def test_single_rounds_are_faint_behind_their_moving_mean(weather: Path, weather_page: Page) -> None:
    values = np.mean([100 * metrics(weather / f"fedavg-keep-all-{s}", "accuracy") for s in (0, 1)], axis=0)
    traces = [trace for trace in weather_page.charts["accuracy"]["data"] if trace["name"] == "keep-all"]
    faint, bold = (trace for trace in traces if "opacity" in trace)
    assert faint["y"] == pytest.approx(values.tolist())
    assert faint["showlegend"] is False
    means = [np.mean(values[max(0, t - WINDOW + 1) : t + 1]) for t in range(12)]
    assert bold["y"] == pytest.approx(means)
    assert bold["line"]["width"] > faint["line"]["width"]


def test_moving_means_pass_over_gaps() -> None:
    values = np.array([[np.nan, 2.0, 4.0, np.nan, np.nan, 9.0]])
    assert moving_mean(values, 2).tolist()[0][1:] == [2.0, 3.0, 4.0, pytest.approx(np.nan, nan_ok=True), 9.0]
    assert np.isnan(moving_mean(values, 2)[0, 0])


def test_collection_and_missing_samples_add_up(weather: Path, weather_page: Page) -> None:
    """Nobody collects more than was recorded, and volumes follow from what is kept and collected."""
    chart = table(weather_page, "collection")
    there = [period["samples"] for period in periods(weather / "fedavg-dufl-0")]
    for policy in ("with data update", "keep-all", "fresh-only", "window-3"):
        measured = [float(v) for v in chart[f"{policy}: measured"] if v not in ("", "nan")]
        assert len(measured) == 11
        assert all(0 < one <= most for one, most in zip(measured, there, strict=False))
    missing = np.mean([metrics(weather / f"fedavg-dufl-{s}", "shortfall") for s in (0, 1)], axis=0)
    runs = [run(*WEATHER, "policy=dufl", f"training.seed={seed}") for seed in (0, 1)]
    wanted = np.mean([(asked(one) or 0) - one.records[0].total_volume for one in runs])
    joined = [float(v) for v in chart["with data update: measured"] if v not in ("", "nan")]
    assert sum(joined) == pytest.approx(wanted - missing.sum())
    assert [float(v) for v in table(weather_page, "shortfall")["with data update"]] == missing.tolist()
    assert f"{missing.sum():,.0f} with data update" in weather_page.text


def periods(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["period"] for line in lines]


def test_nothing_is_nan_where_periods_are_empty(dated: Path, tmp_path: Path) -> None:
    assert any(period["samples"] == 0 for period in periods(dated / "fedavg-dufl-0"))
    page = report(dated, out=tmp_path / "r.html")
    assert_no_nan(page.text)
    for name in ("accuracy", "loss"):
        assert_no_nan(page.charts[name]["csv"])
        assert "" in table(page, name)["keep-all"]
    for place in sorted(dated.glob("fedavg-*")):
        one = Run.load(place)
        assert_no_nan(shown(run_table(one)) + run_html(one) + repr(one))
        plot_run(one, "column").draw_without_rendering()


def test_regressions(regressions: Path, tmp_path: Path) -> None:
    page = report(regressions, out=tmp_path / "r.html")
    assert_no_nan(page.text)
    assert "accuracy" not in page.text
    assert "%" not in page.table("Mean RMSE over the rounds").heads[2]
    assert {"rmse", "r2"} <= set(page.charts)
    assert not {"accuracy", "loss", "classes"} & set(page.charts)
    errors = []
    for seed in (0, 1):
        lines = (regressions / f"fedavg-keep-all-{seed}" / "metrics.jsonl").read_text().splitlines()
        errors.append([json.loads(line)["metrics"].get("rmse", np.nan) for line in lines])
    known = np.array(errors, float)
    assert np.isnan(known).any()
    found = page.table("Mean RMSE over the rounds")
    place = [row[0] for row in found.rows].index("keep-all")
    assert found.values[place][2] == pytest.approx(np.nanmean(known, axis=1).mean())
    one = Run.load(regressions / "fedavg-keep-all-0")
    text = shown(run_table(one))
    assert f"mean test RMSE {np.nanmean(known[0]):.3f}" in text
    assert "R², mean over rounds" in text
    assert "mean label, without a model" in text
    assert_no_nan(text + repr(one) + run_html(one))
    assert "accuracy" not in text + repr(one)


def test_a_comparison_of_regressions(file: Path, dufl_command: Callable[..., tuple[int, str, str]]) -> None:
    options = [word for change in levels(file) for word in ("--set", change)]
    options += ["--policies", "static,window-3"]
    code, out, err = dufl_command("compare", *options, "--seeds", "2", "--json")
    assert (code, err) == (0, "")
    for cell in json.loads(out)["cells"]:
        assert cell["mean_rmse"] == pytest.approx(np.mean(cell["rmses"]))
        assert cell["rmse_std"] == pytest.approx(np.std(cell["rmses"], ddof=1))
        assert cell["mean_r2"] <= 1
        assert cell["time_begin"].startswith("2024-01-")
        assert "accuracy_std" not in cell
    code, out, err = dufl_command("compare", *options)
    assert (code, err) == (0, "")
    assert_no_nan(out)
    assert "mean RMSE" in out
    compared_runs = compare(grid(load(None, levels(file)), (), ("static", "window-3")))
    plot_comparison(compared_runs.cells).draw_without_rendering()
    assert_no_nan(comparison_csv(compared_runs.cells) + repr(compared_runs))


def test_all_policies_by_command(tmp_path: Path, dufl_command: Callable[..., tuple[int, str, str]]) -> None:
    options = [word for change in WEATHER for word in ("--set", change)]
    policies = "static,keep-all,fresh-only,window-5,dufl"
    code, out, err = dufl_command("compare", *options, "--policies", policies, "--out", str(tmp_path / "all"))
    assert (code, err) == (0, "")
    assert "majority class" in out
    with (tmp_path / "all" / "comparison.csv").open() as stream:
        assert {row["policy"] for row in csv.DictReader(stream)} == set(policies.split(","))


def test_runs_that_cannot_be_compared_are_apart(weather: Path, regressions: Path, tmp_path: Path) -> None:
    simulated = make_run(tmp_path / "simulated")
    places: Sequence[Path] = (weather / "fedavg-dufl-0", regressions / "fedavg-dufl-0", simulated)
    page = report(*places, out=tmp_path / "r.html")
    assert {"accuracy", "part_2_rmse", "part_3_accuracy"} <= set(page.charts)
    assert_no_nan(page.table("Mean accuracy over the rounds").caption + str(page.table("Mean RMSE").rows))
    assert "Simulated data" in page.text


def test_one_round_and_a_run_that_was_stopped(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run(*WEATHER, "policy=keep-all", out=place, callbacks=[lambda _: Action.PAUSE])
    page = report(place, out=tmp_path / "r.html")
    assert "stopped after 1 of 12 rounds" in page.text
    assert_no_nan(page.text)
    plot_run(Run.load(place)).draw_without_rendering()


def test_times_beyond_all_calendars_are_numbers(tmp_path: Path) -> None:
    """A run directory may come from a stranger."""
    place = tmp_path / "run"
    run(*WEATHER, "policy=keep-all", out=place)
    lines = read_lines(place)
    for t, line in enumerate(lines):
        line["period"] |= {"dated": True, "begin": 1e50 * t, "end": 1e50 * (t + 1)}
    write_lines(place, lines)
    page = report(place, out=tmp_path / "r.html")
    assert "type" not in page.charts["accuracy"]["layout"]["xaxis"]
    one = Run.load(place)
    shown(run_table(one))
    plot_run(one).draw_without_rendering()


def test_tensorboard(tmp_path: Path, file: Path) -> None:
    pytest.importorskip("torch")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    one = run(*levels(file, "policy=dufl"), out=tmp_path / "run", callbacks=[TensorBoard()])
    events = reader.EventAccumulator(str(tmp_path / "run")).Reload()
    tags = set(events.Tags()["scalars"])
    assert {"rmse", "r2", "mean_rmse", "mean_r2", "shortfall", "no_change"} <= tags
    assert not {"accuracy", "mean_accuracy"} & tags
    errors = np.array([record.metrics.get("rmse", np.nan) for record in one.records])
    assert events.Scalars("mean_rmse")[-1].value == pytest.approx(np.nanmean(errors), rel=1e-5)
    missing = [event.value for event in events.Scalars("shortfall")]
    assert missing == [record.shortfall for record in one.records]


@needs_chromium
@pytest.mark.parametrize(
    "which", ["weather", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dated", "regressions"))]
)
def test_the_page_in_a_browser(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    page = write_report([request.getfixturevalue(which)], tmp_path / "r.html").path
    charts = Page(page.read_text(encoding="utf-8")).charts
    with browse(page.as_uri()) as tab:
        tab.page.wait_for_selector("html[data-drawn=light]", timeout=60_000)
        marks = tab.page.eval_on_selector_all(
            ".plot",
            "plots => plots.map(p => [p.dataset.chart, p.querySelectorAll('.scatterlayer path').length])",
        )
        assert {name for name, number in marks if number} >= {"rmse" if "rmse" in charts else "accuracy"}
        for width, height in (NARROW, WIDE):
            tab.page.set_viewport_size({"width": width, "height": height})
            for theme in ("dark", "light"):
                tab.page.emulate_media(color_scheme=theme)
                tab.page.wait_for_selector(f"html[data-drawn={theme}]", timeout=60_000)
                assert tab.barriers() == []
            assert tab.page.evaluate("document.documentElement.scrollWidth") == width
        assert tab.complaints == []
        assert tab.requests == [page.as_uri()]
