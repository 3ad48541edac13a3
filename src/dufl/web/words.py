"""Numbers and sentences as the page has them."""

import re

import numpy as np

from dufl.formatting import number
from dufl.game.plan import Plan


def plain(text: str) -> str:
    r"""A text that Markdown leaves as it is, whatever is in it.

    >>> print(plain("[x] must be >= 2"))
    \[x\] must be \>= 2
    """
    return re.sub(r"([\\`*_{}\[\]()#+.!|<>~$:^-])", r"\\\1", text)


def scientific(value: float) -> str:
    """A small number as people write it.

    >>> scientific(0.00015), scientific(0.3), scientific(0.0)
    ('1.5e-4', '0.3', '0')
    """
    if value == 0 or value >= 0.1:
        return f"{value:g}"
    digits, _, power = f"{value:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def money(value: float) -> str:
    """A payment.

    >>> money(5302.317), money(0.00123)
    ('5,302.32', '0.00123')
    """
    return f"{value:,.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:.3g}"


def cost(value: float) -> str:
    """A cost, as the charts have it.

    >>> cost(2.39941), cost(28.5036), cost(float("inf"))
    ('2.399', '28.5', 'without bound')
    """
    return number(value) if np.isfinite(value) else "without bound"


def headline(plan: Plan) -> str:
    """What to do, in a sentence."""
    if plan.payment == 0 and plan.conservation_rate == 1:
        return "Update nothing: pay nothing and keep all data"
    return f"Pay {money(plan.payment)} a round and keep {100 * plan.conservation_rate:.1f} % of old data"


def federation(plan: Plan) -> str:
    """Who plans, for whom."""
    clients, rounds = plan.game.clients.size, plan.game.num_rounds
    led = {"stackelberg": "anticipating leader", "algorithm1": "led by Algorithm 1", "given": "offer given"}
    people = f"{clients:,} client{'s' if clients > 1 else ''}"
    return f"{people} · {rounds:,} rounds · {led[plan.method]} · {plan.competition.replace('-', ' ')}"


def against(plan: Plan, other: float | None) -> str:
    """How much less or more a plan costs than another.

    >>> import dufl
    >>> plan = dufl.equilibrium(payment=53, conservation_rate=0.3)
    >>> against(plan, 2 * plan.server_cost), against(plan, plan.server_cost / 2), against(plan, None)
    ('−50.0 %', '+100.0 %', '–')
    """
    if other is None or not np.isfinite(other) or other <= 0 or not np.isfinite(plan.server_cost):
        return "–"
    return f"{percent(100 * (plan.server_cost / other - 1))} %"


def percent(share: float) -> str:
    """A change in per cent, with its sign.

    >>> percent(-5.23), percent(0.01), percent(1234.5)
    ('−5.2', '0.0', '+1,234.5')
    """
    return "0.0" if abs(share) < 0.05 else f"{share:+,.1f}".replace("-", "−")


def beside(plan: Plan, best: Plan) -> str:
    """How far a plan's cost is above the least."""
    if not np.isfinite(plan.server_cost) or best.server_cost <= 0:
        return f"{cost(best.server_cost)} at the optimum"
    return f"{percent(100 * (plan.server_cost / best.server_cost - 1))} % from optimum"


def change(value: float, best: float, digits: int) -> str:
    """A value beside the optimum's.

    >>> change(80.0, 53.02, 2), change(0.2, 0.296, 3)
    ('+26.98 from optimum', '−0.096 from optimum')
    """
    moved = f"{value - best:+,.{digits}f}".replace("-", "−")
    return "as at the optimum" if float(f"{abs(value - best):.{digits}f}") == 0 else f"{moved} from optimum"


def remarks(plan: Plan) -> list[str]:
    """What a reader should know of a plan before trusting its numbers."""
    found = []
    low, high = plan.game.payment_range
    if low < high and plan.payment >= 0.999 * high:
        found.append(
            f"The payment is the largest that the server may offer, {money(high)}: raise it under Method."
        )
    losing = int((plan.outcomes.utility < 0).sum())
    if losing:
        verb = "loses" if losing == 1 else "lose"
        found.append(f"{losing:,} of {plan.game.clients.size:,} clients {verb} by taking part.")
    if not plan.converged:
        found.append(f"The equilibrium was found only within {plan.residual:.1e}.")
    if plan.trace is not None and not plan.trace.converged:
        found.append("Algorithm 1 has not come to rest: its total volume φ still moves.")
    return found
