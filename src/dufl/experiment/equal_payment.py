"""Experiments that pay the same per round, whatever their policy: the payment R* of the server's plan.

`dufl`, `zero` and `random` make the offer of the plan, as always. `algorithm1` searches with payment_range =
(R*, R*). `fixed-R-θ` pays R* in place of R. `keep-all`, `fresh-only`, `window-M` and `periodic-M` have the
baseline payment R*, and `age-price` has it on average. `static` collects nothing and pays nothing: it is a
reference. A user's own policy pays what it pays.
"""

import json
import tomllib

from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.experiment.config import Experiment
from dufl.learning.policies import Name, parse_name
from dufl.plugins import Spec, describe

_AS_PLANNED = ("dufl", "zero", "random", "static")


class EqualPayment:
    """Makes experiments pay the payment of their plan. Each plan is solved once."""

    def __init__(self) -> None:
        self._payments: dict[str, float] = {}

    def __call__(self, experiment: Experiment, dataset: Dataset | Recording) -> Experiment:
        """The experiment with the payment of its plan.

        Args:
            experiment: with the seed of a run. On recorded data its plan depends on it.
            dataset: of the experiment.
        """
        name = _name(experiment.policy)
        if name is None or name.kind in _AS_PLANNED:
            return experiment
        free = experiment.fitted(dataset)
        planned = free.for_goal()
        payment = self._payment(planned)
        if name.kind == "fixed":
            return experiment.replace(policy=f"fixed-{payment!r}-{name.conservation_rate!r}")
        if name.kind == "algorithm1":
            ranges = {n: getattr(free.game, n) for n in ("payment_range", "conservation_range")}
            searched = planned.model_copy(update={"game": planned.game.replace(**ranges)})
            return (searched if free.leader.goals else experiment).replace(policy=f"algorithm1-{payment!r}")
        return experiment.replace(baseline_payment=payment)

    def _payment(self, planned: Experiment) -> float:
        table = tomllib.loads(planned.to_toml())
        law = id(planned.game.loss)  # a law of the user's own may not be described completely
        key = json.dumps([table["game"], table["leader"], planned.game.clients.to_csv(), law])
        if key not in self._payments:
            self._payments[key] = planned.solve().payment
        return self._payments[key]


def policy_label(policy: Spec) -> str:
    """The name of a policy in a comparison at equal payment.

    >>> policy_label("static"), policy_label("fixed-53.01841234-0.9")
    ('static (collects nothing)', 'fixed-53.0184-0.9')
    """
    name = _name(policy)
    if name is None:
        return f"{describe(policy)} (its own payment)"
    if name.kind == "static":
        return "static (collects nothing)"
    if name.kind == "fixed":
        return f"fixed-{name.payment:g}-{name.conservation_rate:g}"
    return "algorithm1" if name.kind == "algorithm1" else str(policy)


def _name(policy: Spec) -> Name | None:
    return parse_name(policy) if isinstance(policy, str) else None
