"""Full buffers and clients that stay away, in tables and texts."""

import numpy as np
import numpy.typing as npt

from dufl.experiment.limits import has_capacities
from dufl.formatting import count, money, number
from dufl.game.plan import Plan

Rows = list[tuple[str, str]]
NAMED = 20  # clients that a text lists one by one at most


def limit_rows(plan: Plan) -> Rows:
    """The rows on full buffers and participation; none if there are no such limits."""
    return [*_capacity_rows(plan), *_participation_rows(plan)]


def limit_texts(plan: Plan) -> list[str]:
    """One sentence on full buffers, and who stays away; none where there is nothing to say."""
    texts = []
    if has_capacities(plan) and (full := _full(plan)):
        rounds, price = _most(plan)
        verb = "has" if full == 1 else "have"
        texts.append(
            f"{_of(full, plan)} {verb} a full buffer in some round, for at most {count(rounds, 'round')}. "
            f"Room for one more sample would earn a client at most {number(price)} over all rounds."
        )
    if plan.takes_part is not None and plan.staying_away:
        away = _named(np.flatnonzero(~plan.takes_part))
        verb = "stays" if plan.staying_away == 1 else "stay"
        texts.append(f"{_of(plan.staying_away, plan)} {verb} away: {away}. {_keeping_text(plan)}")
    return texts


def participation_row(plan: Plan) -> Rows:
    """What the certificate says about who takes part; nothing if participation is mandatory."""
    if plan.takes_part is None:
        return []
    gain = plan.certificate.participation_gain
    return [("largest gain from leaving or entering", f"{gain:.1e} of the turnover")]


def _capacity_rows(plan: Plan) -> Rows:
    if not has_capacities(plan):
        return []
    full = _full(plan)
    label, shown = "clients with a full buffer", f"{full:,} of {plan.game.clients.size:,}"
    if not full:
        return [(label, shown)]
    rounds, price = _most(plan)
    most = "" if rounds == 1 else "at most "
    return [
        (label, f"{shown}, for {most}{count(rounds, 'round')}"),
        ("  worth of room for one sample, at most", number(price)),
    ]


def _participation_rows(plan: Plan) -> Rows:
    if plan.takes_part is None:
        return []
    rows = [("clients that stay away", f"{plan.staying_away:,} of {plan.game.clients.size:,}")]
    if plan.keeping is None:
        return rows
    about = "about " if plan.keeping.estimated else ""
    rows.append(("  keeping the cheapest of them costs", about + money(plan.keeping.cost.min())))
    if plan.staying_away > 1:
        rows.append(("  keeping all of them costs", f"at least {money(plan.keeping.cost.sum())}"))
    return rows


def _keeping_text(plan: Plan) -> str:
    """What it costs to keep the cheapest, and all: with more clients the price falls, so at least the sum."""
    assert plan.keeping is not None
    about = "about " if plan.keeping.estimated else ""
    least = f"{about}{money(plan.keeping.cost.min())}"
    if plan.staying_away == 1:
        return f"It would take part for {least} more over all rounds."
    return (
        f"The cheapest would take part for {least} more over all rounds; to keep all of them costs at least "
        f"{money(plan.keeping.cost.sum())}."
    )


def _full(plan: Plan) -> int:
    return int((plan.certificate.full_rounds > 0).sum())


def _most(plan: Plan) -> tuple[int, float]:
    """The most rounds in which a client is full, and the largest shadow price."""
    return int(plan.certificate.full_rounds.max()), float(plan.certificate.shadow_price.max())


def _of(number_of: int, plan: Plan) -> str:
    return f"{number_of:,} of {count(plan.game.clients.size, 'client')}"


def _named(clients: npt.NDArray[np.intp]) -> str:
    """The numbers of some clients; the first of many."""
    listed = ", ".join(str(k) for k in clients[:NAMED])
    return listed if clients.size <= NAMED else f"{listed} and {clients.size - NAMED:,} more"
