"""The offer in figures: R, θ, U, and U against doing otherwise."""

from typing import Any

import streamlit as st

from dufl.game.plan import Plan
from dufl.web import words

WIDTH = 165  # pixels: two figures side by side on a telephone
_ALGORITHM1 = "How far U is below, or above, that of the paper's Algorithm 1 at its fixed point."


def show_offer(plan: Plan, best: Plan) -> Any:
    """All figures but the last, whose place is returned: Algorithm 1 takes longer."""
    row = st.container(horizontal=True, gap="small")
    pinned = plan is not best
    all_rounds = f"{words.money(plan.total_payment)} in all"
    kept = f"{100 * plan.conservation_rate:.1f} % of old data"
    _figure(
        row,
        "Payment R a round",
        words.money(plan.payment),
        words.change(plan.payment, best.payment, 2) if pinned else all_rounds,
        "What the server pays all clients together in a round.",
    )
    _figure(
        row,
        "Conservation rate θ",
        f"{plan.conservation_rate:.3f}",
        words.change(plan.conservation_rate, best.conservation_rate, 3) if pinned else kept,
        "The share of the data that is kept from one round to the next.",
    )
    _figure(
        row,
        "Server's cost U",
        words.cost(plan.server_cost),
        words.beside(plan, best) if pinned else "the least possible",
        "Payment, too little data and stale data, weighed against each other, over all rounds.",
    )
    _figure(
        row,
        "U against no update",
        words.against(plan, plan.no_update_cost),
        f"from {words.cost(plan.no_update_cost)}",
        "How far U is below, or above, that of paying nothing and keeping all data.",
    )
    late = row.empty()
    _figure(late, "U against Algorithm 1", "…", "from …", _ALGORITHM1)
    return late


def show_baseline(place: Any, plan: Plan, baseline: Plan | None) -> None:
    """The last figure."""
    less = words.against(plan, baseline.server_cost if baseline else None)
    below = f"from {words.cost(baseline.server_cost)}" if baseline else "no plan"
    _figure(place, "U against Algorithm 1", less, below, _ALGORITHM1)


def _figure(place: Any, label: str, value: str, below: str, about: str) -> None:
    place.metric(label, value, below, delta_color="off", delta_arrow="off", help=about, width=WIDTH)
