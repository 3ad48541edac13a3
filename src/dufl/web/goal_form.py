"""The part of the form that chooses a goal, with two widgets: `goal` and `goal_value`."""

from collections.abc import Callable
from typing import Any

import streamlit as st

from dufl.game.plan import Plan
from dufl.web.goal import GOALS, NO_GOAL, Goal, starting_goal
from dufl.web.request import Request, initial_values, is_calibrated

CHOICES = {
    NO_GOAL: "the server's cost",
    "budget": "a budget",
    "accuracy": "an accuracy",
    "point_worth": "what a point of accuracy is worth",
}
FIELDS = {  # label, step and explanation of the number
    "budget": (
        "Budget over all rounds",
        100.0,
        "The most accurate plan that pays at most this over all rounds.",
    ),
    "accuracy": ("Accuracy", 0.01, "From 0 to 1. The cheapest plan that reaches it with 90 % confidence."),
    "point_worth": (
        "Worth of a point of accuracy",
        10.0,
        "Money for one more percentage point of accuracy over the whole run. It replaces γ.",
    ),
}

STARTS = {"budget": 1000.0, "accuracy": 0.8, "point_worth": 50.0}  # if there is no plan to start from


def show_goal(request: Request, show_error: Callable[..., None]) -> None:
    """Draw the choice of a goal and the number that belongs to it."""
    st.header("Goal", anchor=False)
    goal, calibrated = request.values.goal, is_calibrated(request.source)
    st.selectbox(
        "Plan for",
        list(CHOICES),
        key="goal",
        format_func=CHOICES.__getitem__,
        disabled=not calibrated and goal is None,
        on_change=_change_goal,
        help="The server's cost weighs money by γ. For a budget or an accuracy, clients may begin with less "
        "data than they have, unless the file says otherwise.",
    )
    if not calibrated:
        st.caption("A goal needs a loss law in a unit: run `dufl calibrate` first.")
    if goal is not None:
        label, step, about = FIELDS[goal.name]
        st.number_input(label, step=step, format="%g", key="goal_value", help=about)
        st.caption("The goal determines R and θ. Neither can be fixed under What if.")
    show_error("goal")


def goal_widgets(goal: Goal | None) -> dict[str, Any]:
    """The values of the two widgets."""
    return {"goal": goal.name if goal else NO_GOAL, "goal_value": goal.value if goal else 0.0}


def remember_starts(plan: Plan) -> None:
    """Keep what each goal starts at: about what the plan on the page gives."""
    if plan.prediction is not None:
        st.session_state["goal_starts"] = {name: starting_goal(name, plan) for name in GOALS}


def _change_goal() -> None:
    """Start a newly chosen goal at its value in the file or at the plan on the page, and fix nothing."""
    state = st.session_state
    if state["goal"] == NO_GOAL:
        return
    of_file = initial_values(state["source"]).goal
    if of_file is not None and of_file.name == state["goal"]:
        state["goal_value"] = of_file.value
    else:
        state["goal_value"] = state.get("goal_starts", STARTS)[state["goal"]]
    state["fix_payment"] = state["fix_conservation_rate"] = False
