"""The fields of the page, each with its fault beside it."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from dufl.errors import InputError
from dufl.web.choices import Question, beginning
from dufl.web.spread import KINDS, LISTED, NAMES
from dufl.web.state import load_csv, load_toml, payment_step, turn
from dufl.web.words import plain, scientific

STEPS = {"initial_volume": 100.0, "collection_cost": 5e-5, "training_cost": 5e-6}
WEIGHTS = [float(f"{digits}e{power}") for power in range(-7, 0) for digits in (1, 1.5, 2, 3, 5, 7)]
METHODS = {"stackelberg": "stackelberg", "algorithm1": "Algorithm 1"}
COMPETITIONS = {"mean-field": "mean field", "nash": "nash"}
SEARCHES = {"bayesian": "Bayesian, as in the paper", "direct": "direct, exact in each step"}

Mark = Callable[..., None]  # shows the fault if it belongs to one of some fields


def draw(question: Question, fault: InputError | None) -> None:
    """All fields, with the fault beside the one it belongs to."""
    mark = partial(_mark, fault)
    with st.sidebar:
        _server(question, mark)
        _what_if()
        _federation(question, mark)
        _method(question, mark)
        _files(mark)


def _mark(fault: InputError | None, *keys: str) -> None:
    if fault is not None and fault.field in keys:
        st.error(plain(str(fault)))


def _heading(text: str) -> None:
    st.header(text, anchor=False)


def _server(question: Question, mark: Mark) -> None:
    _heading("Server")
    before = beginning(question.source)
    st.slider(
        "Time sensitivity σ",
        min_value=0.0,
        max_value=max(2.0, 2 * before.time_sensitivity),
        step=0.01,
        key="time_sensitivity",
        help="How much staleness hurts the task. At 0, old data are as good as fresh ones.",
    )
    mark("time_sensitivity")
    st.select_slider(
        "Weight of money γ",
        sorted({*WEIGHTS, before.payment_weight}),
        key="payment_weight",
        format_func=scientific,
        help="The weight of money against accuracy, from 0 to 1. The larger it is, the less is paid.",
    )
    mark("payment_weight")
    st.slider(
        "Sampling noise ψ",
        min_value=0.0,
        max_value=max(3.0, 2 * before.sampling_noise),
        step=0.05,
        key="sampling_noise",
        help="How much a small volume of data hurts the task.",
    )
    mark("sampling_noise")


def _federation(question: Question, mark: Mark) -> None:
    _heading("Federation")
    people = question.source.people
    left, right = st.columns(2)
    if people is None:
        left.number_input("Clients N", step=1, key="count", help="How many clients take part.")
    else:
        there = f"{people.clients.size:,}"
        left.text_input("Clients N", there, disabled=True, help="As many as the CSV file has.")
    right.number_input("Rounds T", step=10, key="num_rounds", help="How many rounds are trained.")
    mark("count", "num_rounds")
    if people is not None:
        st.caption(plain(f"Volumes and costs are those in {people.name}."))
        return
    _spread("initial_volume", "Initial volume D(0)", "Samples that a client holds before round 0.", mark)
    unit = "Money per squared sample collected in a round: one more costs 2α·Δ."
    _spread("collection_cost", "Collection cost α", unit, mark)
    unit = "Money per squared sample held in a round: training on one more costs 2β·D."
    _spread("training_cost", "Training cost β", unit, mark)
    st.number_input("Draw (seed)", step=1, key="seed", help="Another number draws other clients.")
    mark("seed")


def _spread(key: str, label: str, unit: str, mark: Mark) -> None:
    """The kind of a spread over clients, and its numbers."""
    listed = getattr(beginning(st.session_state["source"]), key).kind == LISTED
    kinds = [kind for kind in KINDS if listed or kind != LISTED]
    st.selectbox(label, kinds, key=f"{key}_kind", on_change=turn, args=(key,), help=unit)
    names = NAMES[st.session_state[f"{key}_kind"]]
    for column, name, place in zip(st.columns(2), names, ("first", "second"), strict=False):
        step = 0.1 if name == "spread" else STEPS[key]
        form = "%g" if key == "initial_volume" or name == "spread" else "%.2e"
        column.number_input(name, step=step, format=form, key=f"{key}_{place}")
    mark(key)


def _method(question: Question, mark: Mark) -> None:
    _heading("Method")
    st.selectbox(
        "Leader",
        list(METHODS),
        key="method",
        format_func=METHODS.__getitem__,
        help="Who chooses R and θ. Anticipating: the least cost at the clients' true answer. "
        "Algorithm 1: the paper's loop, which holds the total volume φ fixed in each step.",
    )
    if question.choices.method == "algorithm1":
        st.selectbox("Search", list(SEARCHES), key="search", format_func=SEARCHES.__getitem__)
        about = "How much of the old φ is kept. 0 is the paper's update, which oscillates; 0.5 comes to rest."
        st.slider("Damping", min_value=0.0, max_value=1.0, step=0.1, key="damping", help=about)
    st.selectbox(
        "Competition",
        list(COMPETITIONS),
        key="competition",
        format_func=COMPETITIONS.__getitem__,
        help="Mean field: a client takes the total volume φ as given. Exact: it sees its own influence.",
    )
    mark("method", "search", "damping", "competition")
    st.number_input(
        "Largest payment R a round",
        step=50.0,
        format="%g",
        key="largest_payment",
        help="The most that the server may offer: the upper end of payment_range.",
    )
    mark("largest_payment")


def _what_if() -> None:
    _heading("What if")
    about = "Fix R, and see how clients answer."
    if st.toggle("Pin the payment R", key="pin_payment", help=about):
        most, step = payment_step()
        st.slider("Payment R a round", min_value=0.0, max_value=most, step=step, key="payment")
    about = "Fix the share of the data that is kept from round to round."
    if st.toggle("Pin the conservation rate θ", key="pin_conservation_rate", help=about):
        st.slider("Conservation rate θ", min_value=0.0, max_value=1.0, step=0.01, key="conservation_rate")


def _files(mark: Mark) -> None:
    _heading("Files")
    st.file_uploader("Load a TOML file", type="toml", key="toml_file", on_change=load_toml)
    if st.session_state.get("toml_fault"):
        st.error(plain(st.session_state["toml_fault"]))
    about = "One line a client, with the columns initial_volume, collection_cost and training_cost."
    st.file_uploader("Clients from a CSV file", type="csv", key="csv_file", on_change=load_csv, help=about)
    if st.session_state.get("csv_fault"):
        st.error(plain(st.session_state["csv_fault"]))
    mark("people")
