"""The page: a script that Streamlit runs from top to bottom after every change.

Fast parts come first: the offer, the trajectories and the utilities. The comparison with Algorithm 1 and the
cost surface follow. They stop as soon as there is a newer change.
"""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from dufl.errors import InputError
from dufl.experiment.limits import limit_columns
from dufl.formatting import money, number
from dufl.game.plan import Plan
from dufl.game.search import Progress
from dufl.report.chart_spec import Chart
from dufl.report.frontier import frontier_chart
from dufl.report.plan_charts import cost_chart, surface_chart, trajectory_charts, utility_chart
from dufl.report.plotly_charts import Trace, plotly_figure
from dufl.report.predictions import prediction_metrics
from dufl.web import text
from dufl.web.form import current_request, remember, show_form, start_session
from dufl.web.goal import Goal, goal_remarks
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
from dufl.web.recorded import about_recording
from dufl.web.request import SAVED_FILE, Request
from dufl.web.source import open_source

ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">
<path d="M37.4 10A23 23 0 1 0 54 26.6" fill="none" stroke="#0072B2" stroke-width="13"/>
<circle cx="49" cy="15" r="9" fill="#0072B2"/></svg>"""
YIELD_INTERVAL = 0.05  # seconds between two looks for a newer change
METRIC_WIDTH = 165  # pixels: two metrics side by side on a phone
TABLE_ROWS = 1000
ALGORITHM1 = ("U vs. Algorithm 1", "U relative to the paper's Algorithm 1 at its fixed point.")


def show_page(file: Path | None) -> None:
    """Show the whole page; a visit starts with the experiment in `file`."""
    st.set_page_config(page_title="DUFL explorer", page_icon=ICON, layout="wide")
    if "source" not in st.session_state:
        try:
            start_session(open_source(file))
        except InputError as error:  # the file changed after the server started
            st.error(text.escape_markdown(str(error)))
            return
    request, input_error = current_request(), None
    try:
        request.experiment()
    except InputError as error:
        input_error = error
    show_form(request, input_error)
    _show_main(request, input_error)


def _show_main(request: Request, input_error: InputError | None) -> None:
    """Show the plan. If there is none, show the error and the last plan."""
    notice, progress = st.container(), _yielding_progress()
    try:
        if input_error is not None:
            raise input_error
        is_slow = request.values.method == "algorithm1" and request.values.search == "bayesian"
        with st.spinner("Running Algorithm 1") if is_slow else nullcontext():
            plan = plan_of(request, progress)
    except InputError as error:
        last_request = st.session_state.get("last_request")
        consequence = ". The page shows the last valid plan." if last_request else ""
        notice.error(text.escape_markdown(str(error)) + consequence)
        if last_request is None:
            return
        request, plan = last_request, plan_of(last_request)
    remember(request, plan)
    _show_plan(request, plan, progress)


def _yielding_progress() -> Progress:
    """A progress callback that shows nothing, but lets Streamlit stop this run if there is a newer change."""
    place, last = st.empty(), time.monotonic()

    def progress(_: float) -> None:
        nonlocal last
        if time.monotonic() - last > YIELD_INTERVAL:
            last = time.monotonic()
            place.empty()

    return progress


def _show_plan(request: Request, plan: Plan, progress: Progress) -> None:
    optimum = optimum_of(request, progress)
    st.title(text.headline(plan), anchor=False)
    st.caption(text.caption(plan))
    algorithm1_place = _show_metrics(plan, optimum, request.values.goal)
    for remark in goal_remarks(plan, request.values.goal) + text.remarks(plan):
        st.info(remark)
    first = st.container() if plan.prediction else None
    left, right = st.columns([3, 2])
    for column, chart in zip(st.columns(3), trajectory_charts(plan), strict=True):
        _show_chart(column, chart, 250)
    _show_chart(st.container(), utility_chart(plan), 300)
    _show_clients(plan)
    _show_recording(request, plan)
    _show_command(request)
    _show_downloads(request, plan)
    baseline = baseline_plan(request, progress)
    cost = baseline.server_cost if baseline else None
    below = "no plan" if cost is None else f"from {number(cost)}"
    _metric(algorithm1_place, ALGORITHM1[0], text.relative_cost(plan, cost), below, ALGORITHM1[1])
    if first is not None:
        _show_frontier(first, request, plan, progress)
    _show_chart(right, cost_chart(plan, baseline), 380)
    surface = surface_of(request, progress)
    other = optimum if optimum is not plan else None
    _show_chart(
        left, surface_chart(plan, baseline, surface.payments, surface.rates, surface.costs, other), 380
    )


def _show_frontier(place: Any, request: Request, plan: Plan, progress: Progress) -> None:
    """Show which accuracy each payment buys, if anything may be paid."""
    frontier = frontier_around(request, progress)
    if frontier is not None:
        marks = baseline_plan(request), paper_plan(request, progress)
        _show_chart(place, frontier_chart(plan, frontier, *marks), 380)


def _show_metrics(plan: Plan, optimum: Plan, goal: Goal | None) -> Any:
    """Show the offer and its cost; return the place for the comparison with Algorithm 1, which is slower."""
    row = st.container(horizontal=True, gap="small")
    below = (
        f"{money(plan.total_payment)} in total",
        f"{100 * plan.conservation_rate:.1f} % of old data",
    )
    cost_below = "minimum"
    if plan is not optimum:
        if goal is None:
            below = (
                text.from_optimum(plan.payment, optimum.payment, 2),
                text.from_optimum(plan.conservation_rate, optimum.conservation_rate, 3),
            )
        cost_below = text.cost_from_optimum(plan, optimum)
    about = "Total payment to all clients in each round."
    _metric(row, "Payment R per round", money(plan.payment), below[0], about)
    about = "Share of the data that clients keep from one round to the next."
    _metric(row, "Conservation rate θ", f"{plan.conservation_rate:.3f}", below[1], about)
    for metric in prediction_metrics(plan):
        _metric(row, *metric)
    about = "Weighted sum of payment, sampling error and staleness over all rounds."
    label = "Server cost U" if plan.prediction is None else "Cost U above floor"
    _metric(row, label, number(plan.server_cost), cost_below, about)
    about = "U relative to paying nothing and keeping all data."
    against = text.relative_cost(plan, plan.no_update_cost)
    _metric(row, "U vs. no update", against, f"from {number(plan.no_update_cost)}", about)
    place = row.empty()
    _metric(place, ALGORITHM1[0], "…", "from …", ALGORITHM1[1])
    return place


def _metric(place: Any, label: str, value: str, below: str, about: str) -> None:
    place.metric(label, value, below, delta_color="off", delta_arrow="off", help=about, width=METRIC_WIDTH)


def _show_chart(place: Any, chart: Chart, height: int) -> None:
    place.header(chart.title, anchor=False)
    figure = plotly_figure(chart)
    figure["data"] = [_as_arrays(trace) for trace in figure["data"]]
    config = {"displayModeBar": False}
    place.plotly_chart(figure, height=height, config=config, alt=chart.title, key=chart.name)


def _as_arrays(trace: Trace) -> Trace:
    """The trace of a line with arrays, which Plotly checks and serializes ten times as fast as lists."""
    if trace["type"] != "scatter" or trace["mode"] != "lines":
        return trace
    return trace | {axis: np.array(trace[axis], dtype=float) for axis in ("x", "y")}


def _show_clients(plan: Plan) -> None:
    """Show one row per client: volume, costs, collection and utility."""
    clients, outcomes = plan.game.clients, plan.outcomes
    columns = {
        "client": (np.arange(clients.size), "%d", "Client number"),
        "D(0)": (clients.initial_volume, "%.0f", "Samples held before round 0"),
        "α": (
            clients.collection_cost,
            "%.2e",
            "Collection cost: money per squared sample collected in a round",
        ),
        "β": (clients.training_cost, "%.2e", "Training cost: money per squared sample held in a round"),
        "collected": (outcomes.collected, "%.0f", "Samples collected over all rounds"),
        "final volume": (outcomes.final_volume, "%.0f", "Samples held in the last round"),
        "payment": (outcomes.payment, "%.2f", "Payment over all rounds"),
        "utility": (outcomes.utility, "%.2f", "Payment minus costs over all rounds"),
        "random utility": (
            outcomes.random_utility,
            "%.2f",
            "Utility if this client alone collected as much, but at random",
        ),
        "zero utility": (outcomes.zero_utility, "%.2f", "Utility if this client alone collected nothing"),
        **_limits(plan),
    }
    st.header("Clients", anchor=False)
    st.dataframe(
        {name: values[:TABLE_ROWS] for name, (values, _, _) in columns.items()},
        hide_index=True,
        height=min(320, 37 + 35 * clients.size),
        column_config={
            name: st.column_config.NumberColumn(name, format=form, help=about)
            if form
            else st.column_config.TextColumn(name, help=about)
            for name, (_, form, about) in columns.items()
        },
    )
    if clients.size > TABLE_ROWS:
        st.caption(f"First {TABLE_ROWS:,} of {clients.size:,} clients.")


def _limits(plan: Plan) -> dict[str, tuple[Any, str, str]]:
    """Columns on full buffers and participation, if they say something."""
    columns, limits = limit_columns(plan), dict[str, tuple[Any, str, str]]()
    if "full_rounds" in columns and columns["full_rounds"].any():
        limits["full rounds"] = (columns["full_rounds"], "%d", "Rounds in which the buffer is full")
        about = "What room for one more sample would earn over all rounds"
        limits["shadow price"] = (columns["shadow_price"], "%.3g", about)
    if plan.staying_away:
        words = np.where(columns["takes_part"], "yes", "no")
        limits["takes part"] = (words, "", "Whether the client takes part")
        about = "Payment over all rounds, in addition, for which this client alone would take part"
        limits["cost of keeping"] = (columns["keeping_cost"], "%.2f", about)
    return limits


def _show_recording(request: Request, plan: Plan) -> None:
    """Show which recording the experiment is about, and whether the plan asks for more than it has."""
    about = about_recording(request.source, request.experiment(), plan)
    if about is None:
        return
    st.header("Recorded data", anchor=False)
    st.markdown(text.escape_markdown(about.text))
    if about.facts:
        row = st.container(horizontal=True, gap="small")
        for label, value, explanation in about.facts:
            row.metric(label, value, help=explanation, width=METRIC_WIDTH)
    for warning in about.warnings:
        st.warning(text.escape_markdown(warning))


def _show_command(request: Request) -> None:
    st.header("Command line", anchor=False)
    st.code(request.command(), language="bash", wrap_lines=True)
    files = request.files()
    if files:
        st.caption(text.escape_markdown(f"Run this command in the folder of {' and '.join(files)}."))


def _show_downloads(request: Request, plan: Plan) -> None:
    clients_file = request.source.clients_file
    toml = request.experiment().to_toml(clients_file.name if clients_file else "clients.csv")
    downloads: list[tuple[str, str | Callable[[], str], str, str]] = [
        ("Plan", lambda: plan_json(request), "plan.json", "Output of `dufl plan --json`."),
        ("Configuration", toml, SAVED_FILE, "All values on this page as a TOML file."),
        ("Clients", plan.game.clients.to_csv, "clients.csv", "One line per client, to edit and load again."),
        (
            "Trajectories",
            lambda: trajectories_csv(plan),
            "trajectories.csv",
            "Volume, collection and staleness per client and round.",
        ),
    ]
    st.header("Downloads", anchor=False)
    for place, (label, data, name, about) in zip(st.columns(4), downloads, strict=True):
        place.download_button(
            f"{label} ({name.partition('.')[2].upper()})",
            data,
            name,
            on_click="ignore",
            help=about,
            icon=":material/download:",
            width="stretch",
        )


if __name__ == "__main__":
    show_page(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
