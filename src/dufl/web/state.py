"""The state of the page between two looks at it: the source, the fields, and what was loaded.

Streamlit keeps the value of every field under its key, here the name that it has in `Choices`. A spread is
three fields: its kind and its numbers.
"""

import math
from contextlib import suppress
from dataclasses import fields
from typing import Any

import streamlit as st

from dufl.errors import InputError
from dufl.web.choices import Choices, Question, beginning
from dufl.web.source import ClientsFile, Source, file_name, uploaded
from dufl.web.spread import LISTED, NAMES, Kind, Spread

SPREADS = ("initial_volume", "collection_cost", "training_cost")
PINS = ("payment", "conservation_rate")
PLAIN = [field.name for field in fields(Choices) if field.name not in (*SPREADS, *PINS)]


def begin(source: Source) -> None:
    """Remember the source that a visit starts with."""
    st.session_state["first"] = source
    _start(source)


def asked() -> Question:
    """What the fields say now."""
    state = st.session_state
    _restore(state["values"])
    _place_pins()
    source = state["source"]
    before = beginning(source)
    values: dict[str, Any] = {key: _tidy(state[key], getattr(before, key)) for key in PLAIN}
    values |= {key: _spread(key, getattr(before, key)) for key in SPREADS}
    values |= {key: _tidy(state[key], None) if state[f"pin_{key}"] else None for key in PINS}
    state["values"] = Choices(**values)
    return Question(source, state["values"])


def payment_step() -> tuple[float, float]:
    """The largest payment that can be pinned, and a handy step on the way there."""
    most = max(float(st.session_state["largest_payment"]), 1e-6)
    return most, 10.0 ** math.floor(math.log10(most / 200))


def turn(key: str) -> None:
    """Another kind of distribution was chosen: about the same values in its numbers."""
    state = st.session_state
    kind: Kind = state[f"{key}_kind"]
    given: Spread = getattr(beginning(state["source"]), key)
    before: Spread = getattr(state["values"], key)
    _put(key, given if kind == LISTED else before.turned(kind))


def load_toml() -> None:
    """A TOML file was given, or taken away."""
    state = st.session_state
    state["toml_fault"] = ""
    file, people = state["toml_file"], None
    with suppress(InputError):  # a broken CSV file has been told already, beside its own field
        people = _people()
        state["csv_fault"] = ""
    try:
        if file is None:
            first: Source = state["first"]
            _start(first.with_people(people or first.people))
        else:
            _start(uploaded(file.getvalue(), file_name(file.name), people))
    except InputError as fault:
        state["toml_fault"] = str(fault)


def load_csv() -> None:
    """A CSV file was given, or taken away."""
    state = st.session_state
    state["csv_fault"] = ""
    try:
        people = _people()
    except InputError as fault:
        state["csv_fault"] = str(fault)
        return
    if people is not None and state.get("toml_fault"):  # a TOML file may have waited for it
        load_toml()
    before, first = state["source"], state["first"]
    source = before.with_people(people or (first.people if before.name == first.name else None))
    try:
        beginning(source)
    except InputError as fault:  # the file is sound, but does not fit to the rest
        state["csv_fault"] = str(fault)
        return
    state["source"] = source


def _start(source: Source) -> None:
    """Take a source and its values, in the place of what was there."""
    values = beginning(source)
    state = st.session_state
    state["source"], state["values"] = source, values
    for key in PLAIN:
        state[key] = getattr(values, key)
    for key in SPREADS:
        _put(key, getattr(values, key))
    for key in PINS:
        state[f"pin_{key}"] = False


def _people() -> ClientsFile | None:
    """The CSV file that was given, checked."""
    file = st.session_state.get("csv_file")
    if file is None:
        return None
    people = ClientsFile(file_name(file.name), file.getvalue())
    try:
        people.clients  # noqa: B018
    except InputError as fault:
        named = str(fault).startswith(people.name)
        raise InputError(str(fault) if named else f"{people.name}: {fault}") from None
    return people


def _restore(values: Choices) -> None:
    """Give fields that were not drawn last time, and were forgotten for it, the values they had."""
    state = st.session_state
    for key in PLAIN:
        state.setdefault(key, getattr(values, key))
    for key in SPREADS:
        spread = getattr(values, key)
        for part in ("kind", "first", "second"):
            state.setdefault(f"{key}_{part}", getattr(spread, part))
    for key in PINS:
        state.setdefault(f"pin_{key}", False)


def _place_pins() -> None:
    """A pin starts at the offer that is on the page, and stays in its range."""
    state = st.session_state
    offer = state.get("offer", (0.0, 1.0))
    most, step = payment_step()
    first = {"payment": round(offer[0] / step) * step, "conservation_rate": round(offer[1], 2)}
    for key, high in (("payment", most), ("conservation_rate", 1.0)):
        if state[f"pin_{key}"]:
            state[key] = min(max(float(state.get(key, first[key])), 0.0), high)
        else:
            state.pop(key, None)


def _spread(key: str, before: Spread) -> Spread:
    state = st.session_state
    kind: Kind = state[f"{key}_kind"]
    if kind == LISTED:
        return before
    second = state[f"{key}_second"] if len(NAMES[kind]) > 1 else 0.0
    return Spread(kind, _tidy(state[f"{key}_first"], before.first), _tidy(second, before.second))


def _put(key: str, spread: Spread) -> None:
    for part in ("kind", "first", "second"):
        st.session_state[f"{key}_{part}"] = getattr(spread, part)


def _tidy(value: Any, before: Any) -> Any:
    """A number without the dust that steps of a slider leave; what was not changed stays as it is."""
    return float(f"{value:.12g}") if isinstance(value, float) and value != before else value
