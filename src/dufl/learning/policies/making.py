"""From the specification of a policy to the policy.

A policy without a price of its own spends the baseline payment per round: `keep-all`, `fresh-only`,
`window-M`, `periodic-M`, and `age-price`, whose payments have it as their mean. By default it is the payment
of the server's plan; on recorded data, a window or a periodic policy takes everything for nothing instead.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from dufl.data.client_data import ClientData
from dufl.data.replay import Replay
from dufl.game.leader import Algorithm1Options
from dufl.game.parameters import Competition, Game
from dufl.game.plan import Plan, equilibrium, solve
from dufl.learning.own import OwnPolicy
from dufl.learning.policies.age_price import AgePrice
from dufl.learning.policies.names import Name, parse_name
from dufl.learning.policies.periodic import Periodic
from dufl.learning.policies.planned import Planned, no_update
from dufl.learning.policies.policy import Policy
from dufl.learning.policies.strategies import RandomStrategy, ZeroStrategy
from dufl.learning.policies.window import TakeAll, Window
from dufl.plugins import Spec


def make_policy(
    spec: Spec,
    game: Game,
    solve: Callable[[], Plan],
    seed: int,
    data: ClientData | None = None,
    *,
    competition: Competition = "mean-field",
    algorithm1: Algorithm1Options | None = None,
    baseline_payment: float | None = None,
) -> Policy:
    """A policy from its specification.

    Args:
        spec: a name, a `Planned`, or a plugin. A class or function is called with the game and the seed.
        game: whose clients collect.
        solve: called if the server's plan is needed.
        seed: of the run.
        data: the data of the federation.
        competition: of the clients.
        algorithm1: how the paper's loop searches and stops.
        baseline_payment: what a policy without a price of its own spends per round.
    """
    if isinstance(spec, Planned):
        spec.check(game)
        return Planned(spec.plan, seed)
    name = parse_name(spec) if isinstance(spec, str) else None
    if name is None:
        return OwnPolicy(spec, game, seed)
    return _Market(game, cache(solve), seed, data, competition, algorithm1, baseline_payment).policy(name)


@dataclass(frozen=True, eq=False)
class _Market:
    """What the built-in policies are made from; see `make_policy`."""

    game: Game
    solve: Callable[[], Plan]
    seed: int
    data: ClientData | None
    competition: Competition
    algorithm1: Algorithm1Options | None
    baseline_payment: float | None

    def policy(self, name: Name) -> Policy:
        """The policy of a name."""
        if name.kind == "zero":
            return ZeroStrategy(self.solve(), self.seed)
        if name.kind == "random":
            return RandomStrategy(self.solve(), self.seed)
        if name.kind == "window":
            return self._window(name.length)
        if name.kind == "periodic":
            replay, free = self._replay, self._is_free
            return Periodic(
                self.game, int(name.length), None if free else self._payment(), self.competition, replay
            )
        if name.kind == "age-price":
            rate = self.solve().conservation_rate
            return AgePrice(self.game, self._payment(), rate, self.competition, self.seed)
        return Planned(self._plan(name), self.seed)

    def _plan(self, name: Name) -> Plan:
        if name.kind == "dufl":
            return self.solve()
        if name.kind == "static":
            return no_update(self.game)
        if name.kind == "algorithm1":
            return self._algorithm1(name.payment)
        assert name.payment is not None
        assert name.conservation_rate is not None
        return self._equilibrium(name.payment, name.conservation_rate)

    def _window(self, length: float) -> Policy:
        if self._is_free and self._replay:
            return TakeAll(self.game, self._replay, length)
        if length == 1 or math.isinf(length):
            return Planned(self._equilibrium(self._payment(), 0.0 if length == 1 else 1.0), self.seed)
        return Window(self.game, int(length), self._payment(), self.competition, self.seed, self._replay)

    def _equilibrium(self, payment: float, rate: float) -> Plan:
        return equilibrium(self.game, payment=payment, conservation_rate=rate, competition=self.competition)

    def _algorithm1(self, payment: float | None) -> Plan:
        game = self.game if payment is None else self.game.replace(payment_range=(payment, payment))
        plan = solve(game, method="algorithm1", competition=self.competition, algorithm1=self.algorithm1)
        return replace(plan, game=self.game)

    def _payment(self) -> float:
        return self.solve().payment if self.baseline_payment is None else self.baseline_payment

    @property
    def _replay(self) -> Replay | None:
        return self.data if isinstance(self.data, Replay) else None

    @property
    def _is_free(self) -> bool:
        """Whether a policy without a price takes everything that is recorded, for nothing."""
        return self._replay is not None and self.baseline_payment is None
