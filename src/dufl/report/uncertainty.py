"""A robust plan beside the plain one, and what not knowing the loss law costs, in tables."""

from dufl.formatting import money
from dufl.game.information import TERMS
from dufl.game.plan import Plan
from dufl.game.robustness import Judged, Robustness

Rows = list[tuple[str, str]]


def uncertainty_rows(plan: Plan) -> Rows:
    """The rows of a robust plan; none for other plans."""
    found = plan.robustness
    if found is None:
        return []
    terms = [term for term in TERMS if found.value_of[term] > 0]
    return [
        ("this plan", _offer(found.chosen)),
        ("  expected cost U", _cost(found.chosen.expected_cost)),
        ("  worst cost U", _cost(found.chosen.worst_cost)),
        ("plain plan, for the estimated law", _offer(found.plain)),
        ("  expected cost U", _cost(found.plain.expected_cost)),
        ("  worst cost U", _cost(found.plain.worst_cost)),
        ("not knowing the law costs", _spread(found, found.expected_regret)),
        *((f"  knowing the {term} term saves", _spread(found, found.value_of[term])) for term in terms),
    ]


def _offer(judged: Judged) -> str:
    return f"R = {money(judged.payment)}, θ = {judged.conservation_rate:.4f}"


def _cost(cost: float) -> str:
    """A cost with five digits, as plans that are compared cost nearly the same."""
    return f"{cost:,.5g}".replace("inf", "∞")


def _spread(found: Robustness, cost: float) -> str:
    """A cost as money over the run and per round; as loss if money has no weight."""
    per_round = found.amounts(cost)["money_per_round"]
    return found.text(cost) if per_round is None else f"{found.text(cost)}, {money(per_round)} per round"
