"""Every client in a table: what it holds, costs, collects and earns."""

import numpy as np
import streamlit as st

from dufl.game.plan import Plan

SHOWN = 1000  # clients


def show_clients(plan: Plan) -> None:
    """The table, which can be sorted by any column."""
    clients, outcome = plan.game.clients, plan.outcomes
    columns = {
        "client": (np.arange(clients.size), "%d", "Its number"),
        "D(0)": (clients.initial_volume, "%.0f", "Samples held before round 0"),
        "α": (clients.collection_cost, "%.2e", "Money per squared sample collected in a round"),
        "β": (clients.training_cost, "%.2e", "Money per squared sample held in a round"),
        "collected": (outcome.collected, "%.0f", "Samples, in all rounds"),
        "held at the end": (outcome.final_volume, "%.0f", "Samples, in the last round"),
        "paid": (outcome.payment, "%.2f", "Money, over all rounds"),
        "earns": (outcome.utility, "%.2f", "What it is paid less its costs, over all rounds"),
        "at random": (outcome.random_utility, "%.2f", "Earned if it alone collected as much at random"),
        "doing nothing": (outcome.zero_utility, "%.2f", "Earned if it alone collected nothing"),
    }
    st.header("Every client", anchor=False)
    st.dataframe(
        {name: values[:SHOWN] for name, (values, _, _) in columns.items()},
        hide_index=True,
        height=min(320, 37 + 35 * clients.size),
        column_config={
            name: st.column_config.NumberColumn(name, format=form, help=about)
            for name, (_, form, about) in columns.items()
        },
    )
    if clients.size > SHOWN:
        st.caption(f"The first {SHOWN:,} of {clients.size:,} clients.")
