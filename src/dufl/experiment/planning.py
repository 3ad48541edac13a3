"""What `dufl plan` and the explorer do with a configuration: pin, plan, compare, sum up."""

from typing import Any

from dufl.experiment.config import Config
from dufl.game.plan import Offer, Plan, algorithm1_baseline, equilibrium
from dufl.game.search import Progress


def pinned(config: Config, payment: float | None, conservation_rate: float | None) -> Config:
    """The configuration with what is fixed as its whole range, so that it plans the same again."""
    offer = Offer(
        payment=0.0 if payment is None else payment,
        conservation_rate=0.0 if conservation_rate is None else conservation_rate,
    )
    ranges: dict[str, tuple[float, float]] = {}
    if payment is not None:
        ranges["payment_range"] = (offer.payment, offer.payment)
    if conservation_rate is not None:
        ranges["conservation_range"] = (offer.conservation_rate, offer.conservation_rate)
    return config.model_copy(update={"game": config.game.replace(**ranges)}) if ranges else config


def offered(config: Config) -> Plan:
    """The clients' answer, where both payment and conservation rate are pinned."""
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
