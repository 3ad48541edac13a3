"""Numbers and sentences on the page."""

import re

import numpy as np

from dufl.formatting import count, money, number
from dufl.game.plan import Plan
from dufl.report.limits import limit_texts
from dufl.report.predictions import headline_part

LEADERS = {"stackelberg": "Stackelberg leader", "algorithm1": "Algorithm 1", "given": "fixed offer"}
COMPETITIONS = {"mean-field": "mean field", "nash": "N-player Nash"}


def escape_markdown(text: str) -> str:
    r"""A text that Markdown shows unchanged.

    >>> print(escape_markdown("[x] must be >= 2"))
    \[x\] must be \>= 2
    """
    return re.sub(r"([\\`*_{}\[\]()#+.!|<>~$:^-])", r"\\\1", text)


def headline(plan: Plan) -> str:
    """The offer in one sentence."""
    if plan.payment == 0 and plan.conservation_rate == 1:
        return "No update: pay nothing and keep all data"
    kept = 100 * plan.conservation_rate
    return f"Pay {money(plan.payment)} per round and keep {kept:.1f} % of old data{headline_part(plan)}"


def caption(plan: Plan) -> str:
    """The size of the federation and the method."""
    clients, rounds = count(plan.game.clients.size, "client"), count(plan.game.num_rounds, "round")
    if plan.staying_away:
        clients = f"{plan.game.clients.size - plan.staying_away:,} of {clients} take part"
    return f"{clients} · {rounds} · {LEADERS[plan.method]} · {COMPETITIONS[plan.competition]}"


def relative_cost(plan: Plan, other: float | None) -> str:
    """The difference between a plan's cost and another cost, in percent of the other.

    >>> import dufl
    >>> plan = dufl.equilibrium(payment=53, conservation_rate=0.3)
    >>> relative_cost(plan, 2 * plan.server_cost), relative_cost(plan, plan.server_cost / 2)
    ('−50.0 %', '+100.0 %')
    >>> relative_cost(plan, plan.server_cost), relative_cost(plan, None)
    ('0.0 %', '–')
    """
    if other is None or not np.isfinite(other) or other <= 0 or not np.isfinite(plan.server_cost):
        return "–"
    share = 100 * (plan.server_cost / other - 1)
    return "0.0 %" if abs(share) < 0.05 else f"{_signed(share, 1)} %"


def cost_from_optimum(plan: Plan, optimum: Plan) -> str:
    """The difference between a plan's cost and the lowest cost."""
    share = relative_cost(plan, optimum.server_cost)
    return f"optimum {number(optimum.server_cost)}" if share == "–" else f"{share} from optimum"


def from_optimum(value: float, optimum: float, digits: int) -> str:
    """The difference between a value and that of the optimum.

    >>> from_optimum(80.0, 53.02, 2), from_optimum(0.2, 0.296, 3), from_optimum(1.0, 1.0, 2)
    ('+26.98 from optimum', '−0.096 from optimum', 'as in the optimum')
    """
    is_equal = float(f"{abs(value - optimum):.{digits}f}") == 0
    return "as in the optimum" if is_equal else f"{_signed(value - optimum, digits)} from optimum"


def remarks(plan: Plan) -> list[str]:
    """Limits of a plan that the user should know."""
    notes = []
    low, high = plan.game.payment_range
    if low < high and plan.payment >= 0.999 * high:
        notes.append(f"The payment is at its upper limit of {money(high)}. Raise the limit under Method.")
    losing = int((plan.outcomes.utility < 0).sum())
    if losing:
        verb = "has" if losing == 1 else "have"
        notes.append(f"{losing:,} of {count(plan.game.clients.size, 'client')} {verb} negative utility.")
    notes += limit_texts(plan)
    if not plan.converged:
        notes.append(f"The equilibrium did not converge: its residual is {plan.residual:.1e}.")
    if plan.trace is not None and not plan.trace.converged:
        notes.append("Algorithm 1 did not converge: the total volume φ still changes between iterations.")
    return notes


def _signed(value: float, digits: int) -> str:
    return f"{value:+,.{digits}f}".replace("-", "−")
