"""`Discarding`: which samples a step of a buffer discards, by a rule of DUFL or of the user's own."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dufl.data.discard.class_balanced import ClassBalanced
from dufl.data.discard.oldest import oldest
from dufl.data.discard.reservoir import Reservoir
from dufl.data.discard.uniform import uniform
from dufl.data.samples import Indices, Labels
from dufl.errors import InputError

DiscardName = Literal["uniform", "oldest", "reservoir", "class-balanced"]
DiscardRule = Callable[..., npt.ArrayLike]
Discard = DiscardName | DiscardRule | type
Positions = npt.NDArray[np.intp]

DISCARD_RULES: dict[str, DiscardRule] = {
    "uniform": uniform,
    "oldest": oldest,
    "reservoir": Reservoir(),
    "class-balanced": ClassBalanced(),
}
STEP, TRIM = 2, 17  # purposes of random draws: discards of a step, and without one
_OFFERED = ("labels", "fresh", "seen")


class Discarding:
    """Which samples a step discards.

    A rule of your own is a callable `rule(born, count, generator)`, or a class whose instances are. `born`
    are the rounds of birth of the candidates, in the order in which samples joined. It returns `count`
    different positions in `born`. `generator` depends on (seed, client, round) alone. A rule that uses no
    other randomness and keeps no state gives the same results after a restart.

    A rule may have further parameters with these names, which it is then called with as keywords:

        labels   the labels of the candidates
        fresh    how many of the candidates are fresh; they are the last ones
        seen     the number of samples that were ever collected, the fresh ones included

    and these attributes:

        among_fresh   if true, fresh samples are candidates too, and may not join at all. The buffer has the
                      same size after the step. Otherwise all fresh samples join
        for_classes   if true, the rule is refused if labels are numbers
    """

    def __init__(self, discard: Discard, seed: int, client: int) -> None:
        self.name = plugin_name(discard)
        if not is_known(discard) and not callable(discard):
            names = ", ".join(map(repr, DISCARD_RULES))
            raise InputError.of("discard", f"{names} or a callable", repr(discard))
        self._own = not is_known(discard)
        self._rule: Any = discard if self._own else DISCARD_RULES[str(discard)]
        if isinstance(self._rule, type):
            self._rule = self._rule()
        if not callable(self._rule):
            raise InputError.of("discard", "a class whose instances are callable", self.name)
        self._wanted = _wanted(self._rule)
        self._among_fresh = bool(getattr(self._rule, "among_fresh", False))
        self._seed, self._client = seed, client

    @property
    def reads_labels(self) -> bool:
        """Whether the rule sees labels."""
        return "labels" in self._wanted

    def check(self, labels: Labels) -> None:
        """Raise if the rule is not for labels of this kind."""
        check_labels(self._rule, self.name, labels.dtype.kind == "f" and len(labels) > 0)

    def step(
        self, born: Indices, labels: Labels | None, fresh: Labels, keep: int, round: int, seen: int
    ) -> tuple[Positions, Positions]:
        """The positions of the stored samples that a step discards, and of the fresh ones that join.

        Args:
            born: the rounds of birth of the stored samples.
            labels: their labels; they may be left out if the rule does not see them.
            fresh: the labels of the fresh samples.
            keep: the number of stored samples to conserve, if all fresh ones join.
            round: the number of steps before this one.
            seen: the number of samples that were collected before this step.
        """
        held, all_fresh = len(born), np.arange(len(fresh))
        count, seen = held - keep, seen + len(fresh)
        if not count:
            return np.empty(0, np.intp), all_fresh
        if not self._among_fresh:
            return self._positions(born, labels, count, 0, seen, round, STEP), all_fresh
        born = np.concatenate([born, np.full(len(fresh), round + 1)])
        if labels is not None:
            labels = np.concatenate([labels, fresh]) if held and len(fresh) else labels
        chosen = self._positions(born, labels, count, len(fresh), seen, round, STEP)
        rejected = chosen[chosen >= held] - held
        return chosen[chosen < held], np.delete(all_fresh, rejected)

    def trim(self, born: Indices, labels: Labels | None, keep: int, round: int, seen: int) -> Positions:
        """The positions to discard so that `keep` samples remain, without a step; drawn independently."""
        if len(born) == keep:
            return np.empty(0, np.intp)
        return self._positions(born, labels, len(born) - keep, 0, seen, round, TRIM)

    def _positions(
        self,
        born: Indices,
        labels: Labels | None,
        count: int,
        fresh: int,
        seen: int,
        round: int,
        purpose: int,
    ) -> Positions:
        if labels is not None:
            self.check(labels)
        generator = np.random.default_rng([self._seed, self._client, round + 1, purpose])
        offered = {"labels": labels, "fresh": fresh, "seen": seen}
        chosen = self._rule(born, count, generator, **{name: offered[name] for name in self._wanted})
        return self._checked(np.asarray(chosen), len(born), count) if self._own else np.asarray(chosen)

    def _checked(self, chosen: npt.NDArray[Any], size: int, count: int) -> Positions:
        rule = f"{count} different integers from 0 to {size - 1}"
        field = f"the positions that discard rule {self.name!r} returns"
        if chosen.dtype.kind not in "ui" or chosen.ndim != 1:
            raise InputError.of(field, rule, f"{chosen.dtype} {chosen.shape}")
        if len(chosen) != count or len(np.unique(chosen)) != count:
            raise InputError.of(field, rule, f"{len(chosen)}, {len(np.unique(chosen))} of them different")
        if chosen.min() < 0 or chosen.max() >= size:
            raise InputError.of(field, rule, f"{chosen.min()} to {chosen.max()}")
        return chosen.astype(np.intp)


def is_known(discard: Discard) -> bool:
    """Whether a rule is given by its name."""
    return isinstance(discard, str) and discard in DISCARD_RULES


def check_labels(discard: Discard, name: str, numbers: bool, field: str = "discard") -> None:
    """Raise if a rule is for classes and labels are numbers."""
    rule = DISCARD_RULES[str(discard)] if is_known(discard) else discard
    if numbers and getattr(rule, "for_classes", False):
        raise InputError.of(field, "a rule that needs no classes, because the labels are numbers", name)


def plugin_name(plugin: Any) -> str:
    """The name of a rule or stream in messages and files: its text, or the name of its class or function."""
    if isinstance(plugin, str):
        return plugin
    named = plugin if hasattr(plugin, "__qualname__") else type(plugin)
    return f"{named.__module__}:{named.__qualname__}"


def _wanted(rule: DiscardRule) -> tuple[str, ...]:
    """The names of what a rule wants to see besides (born, count, generator)."""
    try:
        parameters = list(inspect.signature(rule).parameters)[3:]
    except (TypeError, ValueError):  # a compiled function may have no signature
        return ()
    return tuple(name for name in _OFFERED if name in parameters)
