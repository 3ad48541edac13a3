"""How many rounds a run has, when server and clients plan again, and what the budget lets the server offer.

A finite run plans all of its rounds. A service (`game.horizon = "endless"`) has no last round: it plans a
window of `game.num_rounds` rounds, runs the first of them, and plans again from what the clients hold then.
"""

from dataclasses import dataclass
from decimal import Decimal

from dufl.errors import InputError
from dufl.experiment.service import Unit
from dufl.game.parameters import Game
from dufl.game.remaining import LEAST_ROUNDS

Range = tuple[float, float]


@dataclass(frozen=True)
class Schedule:
    """The rounds of a run.

    Attributes:
        window: how many rounds the first plan covers.
        total: the number of rounds; None if there is no last one.
        every: after how many rounds the run is planned again; None if it is not.
        endless: whether it is a service.
    """

    window: int
    total: int | None
    every: int | None
    endless: bool

    @classmethod
    def of(cls, game: Game, replan_every: object = None, max_rounds: int | None = None) -> "Schedule":
        """The schedule of a game.

        Args:
            game: its `num_rounds` are those of the run or, with `horizon = "endless"`, of a window.
            replan_every: after how many rounds to plan again; in a service half a window by default.
            max_rounds: the number of rounds of a service, if it ends.
        """
        endless, rounds = game.horizon == "endless", game.num_rounds
        most = rounds - 1 if endless else rounds - LEAST_ROUNDS
        if replan_every is not None and not (type(replan_every) is int and 1 <= replan_every <= most):
            rule = f"an integer from 1 to {most} on Flower with {rounds} planned rounds"
            raise InputError.of("leader.replan_every", rule, replan_every, text=repr(replan_every))
        if not endless:
            if max_rounds is not None:
                raise InputError.of("service.max_rounds", "left out unless horizon = 'endless'", max_rounds)
            return cls(rounds, rounds, replan_every, endless)
        return cls(rounds, max_rounds, replan_every or max(rounds // 2, 1), endless)

    def planned(self, round: int) -> int:
        """How many rounds a plan covers that begins with a round."""
        return self.window if self.total is None or self.endless else self.total - round

    def left(self, round: int) -> int | None:
        """How many rounds are left from a round on; None if there is no last one."""
        return None if self.total is None else max(self.total - round, 0)

    def to_run(self, round: int) -> int:
        """How many rounds of a plan are run at most that begins with a round."""
        left = self.left(round)
        if not self.endless:
            assert left is not None
            return left
        assert self.every is not None
        return self.every if left is None else min(self.every, left)


@dataclass(frozen=True)
class Budget:
    """What may be paid over all rounds.

    Attributes:
        total: the amount; None for any amount.
    """

    total: float | None = None

    def units(self, unit: Unit) -> int | None:
        """The amount in units, rounded down."""
        return None if self.total is None else _floor(self.total, unit)

    def payment_range(self, allowed: Range, rounds: int, spent: int, unit: Unit, fewer: bool) -> Range | None:
        """The payments that the budget can pay in every one of some rounds.

        Args:
            allowed: the lowest and the highest payment of a round.
            rounds: how many rounds to pay for.
            spent: what is paid already, in units.
            unit: the smallest amount that is paid.
            fewer: whether fewer rounds may be paid for if the lowest payment is too high for all of them.

        Returns:
            None if too little is left: with `fewer`, for one round of the lowest payment or of one unit.

        >>> Budget(10.0).payment_range((0.0, 5.0), 4, 0, Unit(), fewer=True)
        (0.0, 2.5)
        >>> Budget(10.0).payment_range((3.0, 5.0), 4, 0, Unit(), fewer=True)  # three rounds
        (3.0, 3.33)
        """
        total, (low, high) = self.units(unit), allowed
        if total is None:
            return allowed
        left, least = max(total - spent, 0), _ceiling(low, unit)
        if fewer:
            rounds = min(rounds, left // max(least, 1))
        if not rounds or left // rounds < least:
            return None
        return low, max(min(high, float(unit.value(left // rounds))), low)

    def payable(self, payment: float, spent: int, unit: Unit) -> int | None:
        """How many rounds of a payment can be paid; None for any number."""
        total, units = self.units(unit), unit.count(payment)
        return None if total is None or not units else max(total - spent, 0) // units


def _floor(amount: float, unit: Unit) -> int:
    units = unit.count(amount)
    return units - 1 if unit.value(units) > _exact(amount) else units


def _ceiling(amount: float, unit: Unit) -> int:
    units = unit.count(amount)
    return units + 1 if unit.value(units) < _exact(amount) else units


def _exact(amount: float) -> Decimal:
    """An amount as it is written."""
    return Decimal(repr(float(amount)))
