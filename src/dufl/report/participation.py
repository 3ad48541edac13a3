"""What it would cost that nobody loses, in tables and texts."""

from dufl.formatting import count, money, signed
from dufl.game.participation import Change, NobodyLoses
from dufl.game.plan import Plan
from dufl.report.predictions import NAMES

Rows = list[tuple[str, str]]


def participation_rows(plan: Plan) -> Rows:
    """The rows under the number of clients with negative utility; none if there are no such clients."""
    cost = _cost(plan)
    if cost is None:
        return []
    rows = []
    about = "about " if cost.estimated else ""
    if cost.trim_start:
        rows.append(("  none with trimmed first buffers", about + _change(cost.trim_start, cost.unit)))
    if cost.larger_payment:
        label = f"  none with a payment of {about}{money(cost.larger_payment.payment)}"
        paid = f"pay +{money(cost.larger_payment.extra_payment)}"
        rows.append((label, f"{paid}, {_change(cost.larger_payment, cost.unit)}"))
    return rows


def participation_text(plan: Plan) -> str:
    """How many clients lose, and what it would cost that none does; empty if none does."""
    cost = _cost(plan)
    if cost is None:
        return ""
    text = f"{count(cost.losing_clients, 'client')} would have negative utility."
    ways = []
    if cost.trim_start:
        trimmed = _change(cost.trim_start, cost.unit)
        ways.append(f"if clients may begin with less than they have (trim_start; {trimmed})")
    if cost.larger_payment:
        more = f"{money(cost.larger_payment.extra_payment)} more over all rounds"
        paid = f"{more}, {_change(cost.larger_payment, cost.unit)}"
        ways.append(f"with a payment of {money(cost.larger_payment.payment)} per round ({paid})")
    return f"{text} None would {', or '.join(ways)}." if ways else text


def _cost(plan: Plan) -> NobodyLoses | None:
    """What it would cost that nobody loses. If participation is voluntary, who loses wants to."""
    return plan.nobody_loses if plan.takes_part is None else None


def _change(change: Change, unit: str | None) -> str:
    """What a change costs in U and in the unit of the law."""
    parts = [f"U {_signed(change.extra_cost)}"]
    if unit is not None and change.extra_loss is not None:
        if unit == "error":
            parts.append(f"{signed(-100 * change.extra_loss, 2)} points")
        else:
            parts.append(f"{NAMES[unit]} {_signed(change.extra_loss)}")
    return ", ".join(parts)


def _signed(value: float) -> str:
    """A difference with three significant digits.

    >>> _signed(0.012345), _signed(-2.0), _signed(float("-inf"))
    ('+0.0123', '−2', '−∞')
    """
    return f"{value:+.3g}".replace("-", "−").replace("inf", "∞")
