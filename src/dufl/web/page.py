"""The page, a script that Streamlit runs from top to bottom after every change.

What is cheap comes first: the offer, the courses and what clients earn. The comparison with Algorithm 1 and
the cost surface follow, and give way to a newer change.
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
from dufl.game.plan import Plan
from dufl.game.search import Progress
from dufl.report.chart_spec import Chart
from dufl.report.plan_charts import cost_chart, surface_chart, trajectory_charts, utility_chart
from dufl.report.plotly_charts import Trace, plotly_figure
from dufl.web import sidebar, state, words
from dufl.web.answer import baseline_plan, optimum_of, plan_json, plan_of, surface_of, trajectories_csv
from dufl.web.choices import SAVED, Question
from dufl.web.looks import icon
from dufl.web.offer import show_baseline, show_offer
from dufl.web.people import show_clients
from dufl.web.source import begin

PATIENCE = 0.05  # seconds for which a newer change may have to wait
Content = str | Callable[[], str]


def show(file: Path | None) -> None:
    """The whole page; `file` is the configuration that it starts with."""
    st.set_page_config(page_title="DUFL explorer", page_icon=icon(), layout="wide")
    if "source" not in st.session_state:
        try:
            state.begin(begin(file))
        except InputError as found:  # the file was changed after the server had started
            st.error(words.plain(str(found)))
            return
    question, fault = state.asked(), None
    try:
        question.config()
    except InputError as found:
        fault = found
    sidebar.draw(question, fault)
    _main(question, fault)


def _main(question: Question, fault: InputError | None) -> None:
    """The plan; where there is none to be had, the reason, and the last one."""
    notice, progress = st.container(), _giving_way()
    try:
        if fault is not None:
            raise fault
        with st.spinner("Algorithm 1 is searching") if _is_slow(question) else nullcontext():
            plan = plan_of(question, progress)
    except InputError as found:
        notice.error(f"{words.plain(str(found))}. What is shown is the last plan that could be made.")
        if "good" not in st.session_state:
            return
        question = st.session_state["good"]
        plan = plan_of(question)
    st.session_state["good"] = question
    st.session_state["offer"] = plan.payment, plan.conservation_rate
    _plan(question, plan, progress)


def _giving_way() -> Progress:
    """A progress that shows nothing, but lets Streamlit look from time to time if a newer change waits."""
    place, last = st.empty(), [time.monotonic()]

    def look(_: float) -> None:
        if time.monotonic() - last[0] > PATIENCE:
            last[0] = time.monotonic()
            place.empty()

    return look


def _is_slow(question: Question) -> bool:
    return question.choices.method == "algorithm1" and question.choices.search == "bayesian"


def _plan(question: Question, plan: Plan, progress: Progress) -> None:
    best = optimum_of(question, progress)
    st.title(words.headline(plan), anchor=False)
    st.caption(words.federation(plan))
    late = show_offer(plan, best)
    for remark in words.remarks(plan):
        st.info(remark)
    left, right = st.columns([3, 2])
    for column, chart in zip(st.columns(3), trajectory_charts(plan), strict=True):
        _chart(column, chart, 250)
    _chart(st.container(), utility_chart(plan), 300)
    show_clients(plan)
    _take_away(question, plan)
    baseline = baseline_plan(question, progress)
    show_baseline(late, plan, baseline)
    _chart(right, cost_chart(plan, baseline), 380)
    found = surface_of(question, progress)
    other = best if best is not plan else None
    _chart(left, surface_chart(plan, baseline, found.payments, found.rates, found.costs, other), 380)


def _chart(place: Any, chart: Chart, height: int) -> None:
    place.header(chart.title, anchor=False)
    figure = plotly_figure(chart)
    figure["data"] = [_packed(trace) for trace in figure["data"]]
    shown = {"displayModeBar": False}
    place.plotly_chart(figure, height=height, config=shown, alt=chart.title, key=chart.name)


def _packed(trace: Trace) -> Trace:
    """A line's numbers as arrays, which Plotly checks and writes ten times as fast."""
    if trace["type"] != "scatter" or trace["mode"] != "lines":
        return trace
    return trace | {axis: np.array(trace[axis], dtype=float) for axis in ("x", "y")}


def _take_away(question: Question, plan: Plan) -> None:
    """The command that plans the same, and files."""
    st.header("The same from the command line", anchor=False)
    st.code(question.command(), language="bash", wrap_lines=True)
    files = question.files()
    if files:
        st.caption(words.plain(f"Run it in the folder of {' and '.join(files)}."))
    people = question.source.people
    toml = question.config().to_toml(people.name if people else "clients.csv")
    downloads: list[tuple[str, Content, str, str]] = [
        ("Plan", lambda: plan_json(question), "plan.json", "What `dufl plan --json` prints for this page."),
        ("Configuration", toml, SAVED, "The values on this page, but for what is pinned, to load again."),
        ("Clients", plan.game.clients.to_csv, "clients.csv", "A line a client: change it and load it again."),
        (
            "Courses",
            lambda: trajectories_csv(plan),
            "courses.csv",
            "Volume, collection and staleness by round.",
        ),
    ]
    st.header("Download", anchor=False)
    for place, (label, data, name, about) in zip(st.columns(4), downloads, strict=True):
        kind = name.partition(".")[2].upper()
        place.download_button(
            f"{label} ({kind})",
            data,
            name,
            on_click="ignore",
            help=about,
            icon=":material/download:",
            width="stretch",
        )


if __name__ == "__main__":
    show(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
