"""Policies on Flower: those that make one offer (R, θ) for all rounds, to which clients respond as planned.

A deal is an offer and the volumes that clients commit to. So a run on Flower can follow a plan of the game,
and nothing else: a policy becomes the ranges in which the server plans or negotiates. `dufl` has those of the
game, `algorithm1` has them too and the paper's loop, and the other ones have one offer.
"""

from typing import Any

from dufl.errors import InputError
from dufl.experiment.config import Experiment
from dufl.learning.policies import Name, parse_name
from dufl.plugins import describe

RULE = (
    "'dufl', 'static', 'algorithm1' or 'fixed-R-θ' on Flower, or 'keep-all' or 'fresh-only' with a "
    "baseline_payment: policies with one offer for all rounds"
)


def constant_offer(config: Experiment) -> Experiment:
    """The experiment whose plan is the one that the policy follows.

    Raises:
        InputError: if the policy follows none.
    """
    policy = config.policy
    name = parse_name(policy) if isinstance(policy, str) else None
    changes = None if name is None else _changes(name, config.baseline_payment)
    if name is None or changes is None:
        raise InputError.of("policy", RULE, policy, text=repr(describe(policy)))
    leader = config.leader.replace(method="algorithm1") if name.kind == "algorithm1" else config.leader
    game = config.game.replace(**changes) if changes else config.game
    return config.model_copy(update={"game": game, "leader": leader})


def _changes(name: Name, baseline_payment: float | None) -> dict[str, Any] | None:
    """The fields of the game that a policy determines; None if it has no constant offer."""
    if name.kind == "static":
        return {"payment_range": (0.0, 0.0), "conservation_range": (1.0, 1.0), "trim_start": False}
    payment, rate = name.payment, name.conservation_rate
    if name.kind == "window" and not 1 < name.length < float("inf"):
        payment, rate = baseline_payment, 0.0 if name.length == 1 else 1.0
        if payment is None:
            return None
    elif name.kind not in ("dufl", "algorithm1", "fixed"):
        return None
    ranges = {"payment_range": payment, "conservation_range": rate}
    return {field: (value, value) for field, value in ranges.items() if value is not None}
