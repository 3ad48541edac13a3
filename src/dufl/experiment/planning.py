"""Shared by `dufl plan` and the explorer: the baseline and the summary of a plan."""

from typing import Any

from dufl.experiment.config import Experiment
from dufl.experiment.limits import limits_summary
from dufl.game.loss import DescribedLaw
from dufl.game.plan import Plan, algorithm1_baseline, equilibrium
from dufl.game.search import Progress


def offered(experiment: Experiment) -> Plan:
    """The clients' response to a fixed payment and conservation rate."""
    return equilibrium(
        experiment.game,
        payment=experiment.game.payment_range[0],
        conservation_rate=experiment.game.conservation_range[0],
        competition=experiment.leader.competition,
    )


def has_baseline(plan: Plan) -> bool:
    """Whether Algorithm 1 has a payment and a known law to choose by, and the plan is of another leader.

    The paper's clients have no choice whether to take part.
    """
    low, high = plan.game.payment_range
    known = not isinstance(plan.game.loss, DescribedLaw) and plan.game.participation == "mandatory"
    return plan.method == "stackelberg" and low < high and known


def baseline_of(plan: Plan, progress: Progress = lambda _: None) -> Plan | None:
    """Algorithm 1's plan for the same game, or None if there is nothing to compare."""
    return algorithm1_baseline(plan.game, plan.competition, progress) if has_baseline(plan) else None


def summary(plan: Plan, baseline: Plan | None) -> dict[str, Any]:
    """The summary of a plan, as printed by `dufl plan --json`."""
    result = plan.summary() | {
        "deviation_gain": plan.certificate.deviation_gain,
        "influence_gain": plan.certificate.influence,
        "certificate_holds": plan.certificate.holds(),
        "losing_clients": plan.certificate.losing_clients,
    }
    result |= limits_summary(plan)
    endless = plan.endless_offer
    result["endless_payment"] = endless.payment if endless else None
    result["endless_conservation_rate"] = endless.conservation_rate if endless else None
    if plan.takes_part is None and plan.nobody_loses:
        result["nobody_loses"] = plan.nobody_loses.summary()
    if baseline:
        result["algorithm1_cost"] = baseline.server_cost
        result["algorithm1_payment"] = baseline.payment
    return result
