"""What a calibrated law predicts, in charts, tables and reports; and nothing of it without such a law."""

import json
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import dufl
from dufl.errors import InputError
from dufl.experiment.frontier import Frontier, frontier_of, paper_offer
from dufl.experiment.plan_directory import write_plan
from dufl.experiment.planning import baseline_of
from dufl.experiment.predicted import Outcome, outcome_of
from dufl.experiment.train import Run, train
from dufl.game.prediction import Prediction
from dufl.report.figures import COLUMN, plot_plan, write_plan_figures
from dufl.report.frontier import frontier_chart
from dufl.report.plan_table import plan_html, plan_table
from dufl.report.plotly_charts import plotly_figure
from dufl.report.predictions import outcome_sentence
from dufl.report.tables import run_html, run_table
from dufl.report.training_report import write_report
from loading import load
from measured import measured_law

LAW = measured_law()
SMALL = ("game.num_rounds=8", "clients.count=5", "clients.initial_volume=60", "training.local_epochs=1")


@pytest.fixture(scope="module")
def plan() -> dufl.Plan:
    return dufl.solve(dufl.Game(num_rounds=30, clients=dufl.Clients.draw(5, 0), loss=LAW), certified=False)


@pytest.fixture(scope="module")
def plain() -> dufl.Plan:
    return dufl.solve(dufl.Game(num_rounds=8, clients=dufl.Clients.draw(5, 0)), certified=False)


@pytest.fixture(scope="module")
def frontier(plan: dufl.Plan) -> Frontier:
    found = frontier_of(plan)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    experiment = load(None, SMALL)
    game = experiment.game.replace(loss=LAW, payment_range=(1.0, 50.0), conservation_range=(0.2, 0.8))
    return train(experiment.replace(game=game), out=tmp_path_factory.mktemp("run") / "run")


def shown(renderable: Any, width: int = 160) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_chart_shows_frontier_and_marks(plan: dufl.Plan, frontier: Frontier) -> None:
    baseline, paper, measured = baseline_of(plan), paper_offer(plan), [(5.0, 0.7), (0.0, 0.5), (3.0, np.nan)]
    chart = frontier_chart(plan, frontier, baseline, paper, measured)
    line, points, *marks = chart.series
    np.testing.assert_allclose(line.y, 100 * frontier.accuracy)
    assert (list(points.x), list(points.y)) == ([5.0], [70.0])
    assert [mark.x[0] for mark in marks] == [p.payment for p in (paper, baseline, plan) if p]
    for mark in marks:  # no plan is above the best
        assert mark.y[0] <= 100 * frontier.at(mark.x[0]) + 0.1
    layout = plotly_figure(chart)["layout"]
    assert layout["xaxis"]["type"] == "log"
    assert "nan" not in json.dumps(plotly_figure(chart)).lower()
    assert "nan" not in chart.to_csv()


@pytest.mark.parametrize("width", ["page", "column"])
def test_the_figure(plan: dufl.Plan, frontier: Frontier, width: Any) -> None:
    figure = plot_plan(plan, "frontier", width, measured=[(5.0, 0.7)])
    (axes,) = figure.axes
    figure.draw_without_rendering()
    assert axes.get_xscale() == "log"
    low, high = axes.get_xlim()
    assert low < frontier.payment[0] < frontier.payment[-1] < high < 10 * frontier.payment[-1]
    assert (float(figure.get_size_inches()[0]) == COLUMN) is (width == "column")


def test_only_a_law_in_a_unit_has_a_figure(plan: dufl.Plan, plain: dufl.Plan, tmp_path: Path) -> None:
    names = {}
    for name, one in (("law", plan), ("bound", plain)):
        paths = write_plan(one, tmp_path / name, figures=partial(write_plan_figures, one))
        names[name] = {path.name for path in paths if path.exists()}
    assert names["law"] - names["bound"] == {"frontier.png", "frontier.svg", "frontier.pdf"}
    with pytest.raises(InputError) as refused:
        plot_plan(plain, "frontier")
    assert refused.value.field == "kind"


def test_tables_of_plans(plan: dufl.Plan, plain: dufl.Plan) -> None:
    assert plan.prediction is not None
    text, html = shown(plan_table(plan, baseline_of(plan))), plan_html(plan)
    value = f"{100 * plan.prediction.accuracy:.1f} %"
    for page in (text, html):
        assert f"predicted accuracy {value}" in page  # in the headline
        assert "payment per point of accuracy at this plan" in page
        assert "cost U above the floor" in page
        assert "nan" not in page
    for page in (shown(plan_table(plain)), plan_html(plain)):
        assert not any(word in page for word in ("predicted", "per point", "floor", "nan"))
    rmse = dufl.solve(plan.game.replace(loss=LAW.replace(unit="rmse")), certified=False)
    assert "predicted RMSE" in shown(plan_table(rmse))
    assert "accuracy" not in plan_html(rmse)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_nothing_is_not_a_number(rate: float) -> None:
    game = dufl.Game(num_rounds=2000, clients=dufl.Clients.draw(3, 0), loss=LAW)
    nothing = dufl.equilibrium(game, payment=0.0, conservation_rate=rate)
    for page in (
        shown(plan_table(nothing)),
        plan_html(nothing),
        str(nothing.prediction and nothing.summary()),
    ):
        assert "nan" not in page


def test_runs_compare_prediction_and_measurement(run: Run) -> None:
    first = int(0.6 * 8)
    late = float(np.mean([record.accuracy for record in run.records[first:]]))
    assert run.plan is not None
    assert run.plan.prediction is not None
    assert run.folder is not None
    summary = run.summary()
    assert summary["measured_late_accuracy"] == pytest.approx(late)
    assert summary["predicted_accuracy"] == run.plan.prediction.accuracy
    assert summary["predicted_low"] < summary["predicted_accuracy"] < summary["predicted_high"]
    written = json.loads((run.folder / "summary.json").read_text())
    assert written["measured_late_accuracy"] == summary["measured_late_accuracy"]
    assert Run.load(run.folder).summary() == summary
    assert train(run.experiment, out=run.folder, resume=True).summary() == summary
    for page in (shown(run_table(run)), run_html(run)):
        assert f"measured from round {first} on" in page
        assert "calibrate again" in page  # five rounds of training are not what the law is about


def test_a_measurement_inside_the_interval_needs_no_words() -> None:
    prediction = Prediction("error", 0.226, 0.003)
    inside, outside = (Outcome(prediction, accuracy, 60) for accuracy in (0.772, 0.74))
    assert outcome_sentence(inside) == ""
    expected = "the law predicted 77.4 % (76.9 to 77.9), measured 74.0 %: calibrate again"
    assert outcome_sentence(outside) == expected
    assert outcome_sentence(None) == ""


def test_without_prediction_or_late_rounds_there_is_no_outcome(run: Run) -> None:
    assert outcome_of(None, run.records) is None
    assert outcome_of(run.plan, run.records[:4]) is None
    assert outcome_of(run.plan, run.records[:5]) is not None


def test_the_report_begins_its_plan_with_the_frontier(run: Run) -> None:
    assert run.folder is not None
    page = write_report([run.folder]).path.read_text(encoding="utf-8")
    assert page.index("Accuracy that each payment buys") < page.index("Server cost by term")
    assert "The law predicted" in page
    assert "mean from round 4 on" in page
