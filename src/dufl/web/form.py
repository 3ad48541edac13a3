"""The form in the sidebar, and its state between two runs of the page.

Streamlit keeps the value of every widget in the session state under the widget's key, which is the name of
the field in `FormValues`. A `ColumnValue` has three widgets: kind, first and second parameter.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any

import streamlit as st

from dufl.errors import InputError
from dufl.formatting import scientific
from dufl.game.plan import Plan
from dufl.web.goal import NO_GOAL, Goal
from dufl.web.goal_form import goal_widgets, remember_starts, show_goal
from dufl.web.request import (
    COLUMNS,
    FROM_FILE,
    KINDS,
    NO_LIMIT,
    PARAMETERS,
    ColumnValue,
    FormValues,
    Kind,
    Request,
    initial_values,
)
from dufl.web.source import ClientsFile, Source, file_name, upload_source
from dufl.web.text import COMPETITIONS, LEADERS, escape_markdown

FIXED = ("payment", "conservation_rate")
SCALARS = [field.name for field in fields(FormValues) if field.name not in (*COLUMNS, *FIXED, "goal")]
STEPS = {"initial_volume": 100.0, "collection_cost": 5e-5, "training_cost": 5e-6, "capacity": 100.0}
STEPS |= {"collection_price": 0.01, "training_price": 0.001, "reservation": 1.0}
MORE = ("capacity", "collection_price", "training_price", "reservation")  # columns that few federations need
PARTICIPATIONS = {"mandatory": "mandatory, as in the paper", "voluntary": "voluntary"}
WEIGHTS = [float(f"{digits}e{power}") for power in range(-7, 0) for digits in (1, 1.5, 2, 3, 5, 7)]
SEARCHES = {"bayesian": "Bayesian, as in the paper", "direct": "direct minimization"}

ShowError = Callable[..., None]  # shows the error if it belongs to one of the given fields


def start_session(source: Source) -> None:
    """Start a visit with the source of the server."""
    st.session_state["first_source"] = source
    _load(source)


def current_request() -> Request:
    """The request that the form describes."""
    state = st.session_state
    for key, value in _widgets(state["values"]).items():  # Streamlit forgets widgets that it did not draw
        state.setdefault(key, value)
    _place_fixed()
    initial = initial_values(state["source"])
    values: dict[str, Any] = {name: _tidy(state[name], getattr(initial, name)) for name in SCALARS}
    values |= {name: _column(name, getattr(initial, name)) for name in COLUMNS}
    values["goal"] = _goal(initial.goal)
    if values["goal"] is None:
        values |= {name: _tidy(state[name], None) if state[f"fix_{name}"] else None for name in FIXED}
    state["values"] = FormValues(**values)
    return Request(state["source"], state["values"])


def remember(request: Request, plan: Plan) -> None:
    """Keep the last request that has a plan."""
    st.session_state["last_request"] = request
    st.session_state["last_offer"] = plan.payment, plan.conservation_rate
    remember_starts(plan)


def show_form(request: Request, error: InputError | None) -> None:
    """Draw all fields, with the error below the field that it belongs to."""
    show_error = partial(_show_error, error)
    with st.sidebar:
        show_goal(request, show_error)
        _server(request, show_error)
        _what_if(request.values.goal is not None)
        _federation(request, show_error)
        _more_about_clients(request, show_error)
        _method(request, show_error)
        _files(show_error)


def _show_error(error: InputError | None, *names: str) -> None:
    if error is not None and error.field in names:
        st.error(escape_markdown(str(error)))


def _server(request: Request, show_error: ShowError) -> None:
    st.header("Server", anchor=False)
    initial, goal = initial_values(request.source), request.values.goal
    st.slider(
        "Time sensitivity σ",
        min_value=0.0,
        max_value=max(2.0, 2 * initial.time_sensitivity),
        step=0.01,
        key="time_sensitivity",
        help="How much stale data hurts the task. At 0, old data is as good as fresh data.",
    )
    show_error("time_sensitivity")
    st.select_slider(
        "Payment weight γ",
        sorted({*WEIGHTS, initial.payment_weight}),
        key="payment_weight",
        format_func=scientific,
        disabled=goal is not None and goal.name == "point_worth",
        help="Weight of the payment in the server's cost, from 0 to 1. A larger weight lowers the payment.",
    )
    show_error("payment_weight")
    st.slider(
        "Sampling noise ψ",
        min_value=0.0,
        max_value=max(3.0, 2 * initial.sampling_noise),
        step=0.05,
        key="sampling_noise",
        help="How much a small data volume hurts the task.",
    )
    show_error("sampling_noise")


def _what_if(has_goal: bool) -> None:
    st.header("What if", anchor=False)
    about = "Set R yourself instead of optimizing it."
    if st.toggle("Fix payment R", key="fix_payment", disabled=has_goal, help=about):
        high, step = _payment_slider()
        st.slider("Payment R per round", min_value=0.0, max_value=high, step=step, key="payment")
    about = "Set θ yourself instead of optimizing it."
    if st.toggle("Fix conservation rate θ", key="fix_conservation_rate", disabled=has_goal, help=about):
        st.slider("Conservation rate θ", min_value=0.0, max_value=1.0, step=0.01, key="conservation_rate")


def _federation(request: Request, show_error: ShowError) -> None:
    st.header("Federation", anchor=False)
    clients_file = request.source.clients_file
    left, right = st.columns(2)
    if clients_file is None:
        left.number_input("Clients N", step=1, key="count", help="Number of clients.")
    else:
        size = f"{clients_file.clients.size:,}"
        left.text_input("Clients N", size, disabled=True, help="Number of clients in the CSV file.")
    right.number_input("Rounds T", step=10, key="num_rounds", help="Number of training rounds.")
    show_error("count", "num_rounds")
    if clients_file is not None:
        st.caption(escape_markdown(f"Volumes and costs from {clients_file.name}."))
        return
    about = "Samples that a client holds before round 0."
    _column_fields("initial_volume", "Initial volume D(0)", about, show_error)
    about = "Money per squared sample collected in a round. The marginal cost is 2α·Δ."
    _column_fields("collection_cost", "Collection cost α", about, show_error)
    about = "Money per squared sample held in a round. The marginal cost is 2β·D."
    _column_fields("training_cost", "Training cost β", about, show_error)
    st.number_input("Seed", step=1, key="seed", help="Seed of the random volumes and costs.")
    show_error("seed")


def _more_about_clients(request: Request, show_error: ShowError) -> None:
    """Capacities, prices and participation; open if one of them is used."""
    values = request.values
    paper = (ColumnValue.of(None), *(ColumnValue("constant", 0.0),) * 3)
    is_paper = tuple(getattr(values, name) for name in MORE) == paper and values.participation == "mandatory"
    with st.expander("More about the clients", expanded=not is_paper):
        if request.source.clients_file is None:
            about = "The largest number of samples in a client's buffer. At least its initial volume."
            _column_fields("capacity", "Capacity C", about, show_error)
            about = "Money per sample collected, in addition to the quadratic cost."
            _column_fields("collection_price", "Collection price", about, show_error)
            about = "Money per sample held in a round, in addition to the quadratic cost."
            _column_fields("training_price", "Training price", about, show_error)
        about = "Voluntary: a client whose utility would be below its reservation stays away."
        st.selectbox(
            "Participation",
            list(PARTICIPATIONS),
            key="participation",
            format_func=PARTICIPATIONS.__getitem__,
            help=about,
        )
        show_error("participation")
        if request.source.clients_file is None:
            about = "The utility over all rounds below which a client stays away, if it may."
            _column_fields("reservation", "Reservation", about, show_error)


def _column_fields(name: str, label: str, about: str, show_error: ShowError) -> None:
    """The kind of a distribution over clients, and its parameters."""
    is_list = getattr(initial_values(st.session_state["source"]), name).kind == FROM_FILE
    kinds = [kind for kind in KINDS if is_list or kind != FROM_FILE]
    kinds = [NO_LIMIT, *kinds] if name == "capacity" else kinds
    st.selectbox(label, kinds, key=f"{name}_kind", on_change=_change_kind, args=(name,), help=about)
    parameters = PARAMETERS[st.session_state[f"{name}_kind"]]
    for column, parameter, part in zip(st.columns(2), parameters, ("first", "second"), strict=False):
        step = 0.1 if parameter == "spread" else STEPS[name]
        form = "%.2e" if name.endswith("_cost") and parameter != "spread" else "%g"
        column.number_input(parameter, step=step, format=form, key=f"{name}_{part}")
    show_error(name)


def _method(request: Request, show_error: ShowError) -> None:
    st.header("Method", anchor=False)
    st.selectbox(
        "Leader",
        ["stackelberg", "algorithm1"],
        key="method",
        format_func=LEADERS.__getitem__,
        help="How the server chooses R and θ. Stackelberg leader: minimizes U at the clients' equilibrium. "
        "Algorithm 1: the paper's iteration, which holds the total volume φ fixed in each step.",
    )
    if request.values.method == "algorithm1":
        st.selectbox("Search", list(SEARCHES), key="search", format_func=SEARCHES.__getitem__)
        about = "Share of the old φ in each update. 0 is the paper's update, which oscillates; 0.5 converges."
        st.slider("Damping", min_value=0.0, max_value=1.0, step=0.1, key="damping", help=about)
    st.selectbox(
        "Competition",
        list(COMPETITIONS),
        key="competition",
        format_func=COMPETITIONS.__getitem__,
        help="Mean field: a client takes the total volume φ as given. "
        "N-player Nash: it takes its own effect on φ into account.",
    )
    show_error("method", "search", "damping", "competition")
    st.number_input(
        "Maximum payment R per round",
        step=50.0,
        format="%g",
        key="max_payment",
        help="Upper end of payment_range.",
    )
    show_error("max_payment")


def _files(show_error: ShowError) -> None:
    st.header("Files", anchor=False)
    st.file_uploader("Load a TOML file", type="toml", key="toml_file", on_change=_load_toml)
    _show_message("toml_error")
    about = "One line per client. Required columns: initial_volume, collection_cost, training_cost."
    st.file_uploader(
        "Load clients from a CSV file", type="csv", key="csv_file", on_change=_load_csv, help=about
    )
    _show_message("csv_error")
    show_error("clients_file")


def _show_message(key: str) -> None:
    if st.session_state.get(key):
        st.error(escape_markdown(st.session_state[key]))


def _change_kind(name: str) -> None:
    """Set the parameters of a newly selected kind to about the same range."""
    state = st.session_state
    kind: Kind = state[f"{name}_kind"]
    initial: ColumnValue = getattr(initial_values(state["source"]), name)
    current: ColumnValue = getattr(state["values"], name)
    state.update(_column_widgets(name, initial if kind == FROM_FILE else current.converted(kind)))


def _load_toml() -> None:
    """Load an uploaded TOML file; return to the first source if it was removed."""
    state = st.session_state
    state["toml_error"] = ""
    file, clients_file = state["toml_file"], None
    with suppress(InputError):  # a broken CSV file already has its message
        clients_file = _uploaded_clients()
        state["csv_error"] = ""
    try:
        if file is None:
            first: Source = state["first_source"]
            _load(first.with_clients(clients_file or first.clients_file))
        else:
            _load(upload_source(file.getvalue(), file_name(file.name), clients_file))
    except InputError as error:
        state["toml_error"] = str(error)


def _load_csv() -> None:
    """Load uploaded clients; return to those of the source if the file was removed."""
    state = st.session_state
    state["csv_error"] = ""
    try:
        clients_file = _uploaded_clients()
        if clients_file is not None and state.get("toml_error"):  # the TOML file may have referred to it
            _load_toml()
        current, first = state["source"], state["first_source"]
        original = first.clients_file if current.name == first.name else None
        source = current.with_clients(clients_file or original)
        initial_values(source)  # a valid file may still not fit the rest
        state["source"] = source
    except InputError as error:
        state["csv_error"] = str(error)


def _uploaded_clients() -> ClientsFile | None:
    """The uploaded CSV file, checked."""
    file = st.session_state.get("csv_file")
    if file is None:
        return None
    clients_file = ClientsFile(file_name(file.name), file.getvalue())
    try:
        clients_file.clients  # noqa: B018
    except InputError as error:
        is_named = str(error).startswith(clients_file.name)
        raise InputError(str(error) if is_named else f"{clients_file.name}: {error}") from None
    return clients_file


def _load(source: Source) -> None:
    """Replace the source and all values of the form."""
    state, values = st.session_state, initial_values(source)
    state["source"], state["values"] = source, values
    state.update(_widgets(values))


def _widgets(values: FormValues) -> dict[str, Any]:
    """The values of all widgets but the sliders of a fixed offer."""
    widgets = {name: getattr(values, name) for name in SCALARS}
    for name in COLUMNS:
        widgets |= _column_widgets(name, getattr(values, name))
    return widgets | goal_widgets(values.goal) | {f"fix_{name}": False for name in FIXED}


def _column_widgets(name: str, column: ColumnValue) -> dict[str, Any]:
    return {f"{name}_{part}": getattr(column, part) for part in ("kind", "first", "second")}


def _column(name: str, initial: ColumnValue) -> ColumnValue:
    state = st.session_state
    kind: Kind = state[f"{name}_kind"]
    if kind == FROM_FILE:
        return initial
    if kind == NO_LIMIT:
        return ColumnValue(NO_LIMIT, math.inf)
    second = state[f"{name}_second"] if len(PARAMETERS[kind]) > 1 else 0.0
    return ColumnValue(kind, _tidy(state[f"{name}_first"], initial.first), _tidy(second, initial.second))


def _goal(initial: Goal | None) -> Goal | None:
    state = st.session_state
    if state["goal"] == NO_GOAL:
        return None
    return Goal(state["goal"], _tidy(state["goal_value"], initial.value if initial else None))


def _place_fixed() -> None:
    """Start the slider of a fixed value at the offer on the page, and keep it in its range."""
    state = st.session_state
    payment, rate = state.get("last_offer", (0.0, 1.0))
    high, step = _payment_slider()
    for name, start, end in (
        ("payment", round(payment / step) * step, high),
        ("conservation_rate", round(rate, 2), 1.0),
    ):
        if state[f"fix_{name}"]:
            state[name] = min(max(float(state.get(name, start)), 0.0), end)
        else:
            state.pop(name, None)


def _payment_slider() -> tuple[float, float]:
    """The largest value of the slider of the payment, and its step."""
    high = max(float(st.session_state["max_payment"]), 1e-6)
    return high, 10.0 ** math.floor(math.log10(high / 200))


def _tidy(value: Any, initial: Any) -> Any:
    """A number without the rounding errors of a slider; an unchanged value stays exact."""
    return float(f"{value:.12g}") if isinstance(value, float) and value != initial else value
