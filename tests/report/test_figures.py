"""Figures of files and tables of notebooks: the same charts as on pages, in two widths and three formats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dufl
from command_line import SMALL
from dufl.errors import InputError
from dufl.experiment.compare import compare, grid
from dufl.experiment.train import Run, train
from dufl.report.chart_spec import Chart
from dufl.report.figures import COLUMN, figure_of, plot_comparison, plot_plan, plot_run, save
from dufl.report.plan_charts import cost_chart, sweep_charts, trajectory_charts, utility_chart
from dufl.report.plan_table import plan_html
from dufl.report.plotly_charts import plotly_figure
from dufl.report.tables import run_html
from loading import load


@pytest.fixture(scope="module")
def plan() -> dufl.Plan:
    return dufl.solve(dufl.Game(num_rounds=8, clients=dufl.Clients.draw(5, 0)))


@pytest.fixture(scope="module")
def run() -> Run:
    return train(load(None, SMALL))


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("kind", ["trajectories", "surface", "utilities", "cost"])
@pytest.mark.parametrize("width", ["page", "column"])
def test_plans(plan: dufl.Plan, kind: Any, width: Any) -> None:
    figure = plot_plan(plan, kind, width, baseline=plan)
    figure.draw_without_rendering()
    assert (float(figure.get_size_inches()[0]) == COLUMN) is (width == "column")
    sizes = [
        float(text.get_fontsize()) for axes in figure.axes for text in (axes.title, *axes.get_xticklabels())
    ]
    assert min(sizes) >= 6.5
    assert len(legend(figure)) >= 2


@pytest.mark.parametrize("width", ["page", "column"])
def test_runs_and_comparisons(run: Run, width: Any) -> None:
    figure = plot_run(run, width)
    assert len(figure.axes) == 4
    (line,) = figure.axes[0].get_lines()
    accuracy = [100 * record.accuracy for record in run.records]
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), accuracy)
    compared = compare(grid(load(None, SMALL), ["fedavg", "fedprox"], ["dufl", "static"]), seeds=2).cells
    names = legend(plot_comparison(compared, width))
    assert [name.partition(":")[0] for name in names] == [f"{c.algorithm}, {c.policy}" for c in compared]


@pytest.mark.parametrize(("argument", "value"), [("kind", "pie"), ("width", "wide")])
def test_what_cannot_be_drawn(plan: dufl.Plan, argument: str, value: Any) -> None:
    with pytest.raises(InputError) as refused:
        plot_plan(plan, **{argument: value})
    assert refused.value.field == argument


def test_all_formats_with_the_same_bytes(plan: dufl.Plan, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        paths = save(plot_plan(plan, width="column"), tmp_path / folder, "plan")
        assert [path.name for path in paths] == ["plan.png", "plan.svg", "plan.pdf"]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    assert (tmp_path / "one" / "plan.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(tmp_path / "one" / "plan.png") as image:
        assert image.width == round(160 * COLUMN)


def drawn_by_matplotlib(chart: Chart) -> dict[str, Any]:
    """The values by the name of their series: lines, and the lengths of bars."""
    (axes,) = figure_of([chart]).axes
    lines = {str(line.get_label()): np.asarray(line.get_ydata(), float) for line in axes.get_lines()}
    length = "get_width" if chart.horizontal else "get_height"
    bars = {
        str(c.get_label()): np.array([getattr(bar, length)() for bar in c.get_children()])
        for c in axes.containers
    }
    return lines | bars


def test_both_renderers_draw_the_same_numbers(plan: dufl.Plan) -> None:
    rows: list[dict[str, Any]] = [
        {"game.x": value, "payment": 1.0 * value, "conservation_rate": 0.5, "server_cost": 3.0}
        | {"algorithm1_payment": 2.0, "algorithm1_conservation_rate": None, "algorithm1_cost": 4.0}
        for value in (1, 2, 4)
    ]
    charts = [
        *trajectory_charts(plan),
        utility_chart(plan),
        cost_chart(plan),
        *sweep_charts(["game.x"], rows),
    ]
    for chart in charts:
        drawn, seen = drawn_by_matplotlib(chart), 0
        for trace in plotly_figure(chart)["data"]:
            if trace.get("showlegend", True):
                values = np.array(trace["x"] if chart.horizontal else trace["y"], float)
                np.testing.assert_allclose(drawn[trace["name"]], values)
                seen += 1
        assert seen == len(chart.series) - chart.horizontal


def test_tables_for_notebooks(plan: dufl.Plan, run: Run) -> None:
    text = plan_html(plan)
    assert f"Pay {plan.payment:,.2f} per round" in text
    assert "clients with negative utility" in text
    data = run.experiment.data.model_copy(update={"dataset": "<b>&.npz"})
    config = run.experiment.model_copy(update={"data": data})
    shown = run_html(Run(config, run.records))
    assert "&lt;b&gt;&amp;" in shown
    assert "<b>" not in shown
    assert f"{100 * run.accuracy:.2f} %" in shown
