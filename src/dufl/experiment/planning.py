"""What `dufl plan` and the explorer do with a plan: compare it with a baseline, and sum it up."""

from typing import Any

from dufl.experiment.config import Experiment
from dufl.game.plan import Plan, algorithm1_baseline, equilibrium
from dufl.game.search import Progress


def offered(config: Experiment) -> Plan:
    """The clients' response where both payment and conservation rate are fixed."""
    return equilibrium(
        config.game,
        payment=config.game.payment_range[0],
        conservation_rate=config.game.conservation_range[0],
        competition=config.leader.competition,
    )


def has_baseline(plan: Plan) -> bool:
    """Whether there is something for Algorithm 1 to choose, and another leader chose it."""
    low, high = plan.game.payment_range
    return plan.method == "stackelberg" and low < high


def baseline_of(plan: Plan, progress: Progress = lambda _: None) -> Plan | None:
    """Algorithm 1's plan for the same game, unless there is nothing to compare."""
    return algorithm1_baseline(plan.game, plan.competition, progress) if has_baseline(plan) else None


def summary(plan: Plan, baseline: Plan | None) -> dict[str, Any]:
    """What `dufl plan --json` prints."""
    found = plan.summary() | {
        "deviation_gain": plan.certificate.deviation_gain,
        "influence_gain": plan.certificate.influence,
        "certificate_holds": plan.certificate.holds(),
        "losing_clients": plan.certificate.losing_clients,
    }
    if baseline:
        found["algorithm1_cost"] = baseline.server_cost
        found["algorithm1_payment"] = baseline.payment
    return found
