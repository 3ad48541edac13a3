"""Wrappers around user-defined algorithms and policies.

A plugin gets read-only arguments. What it returns is checked before it is used, and its exceptions become
`PluginError`: see `plugins`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dufl.errors import CapacityError, InputError
from dufl.game.parameters import Game
from dufl.learning.algorithm import LocalPenalty, State, Update, Vector
from dufl.plugins import Spec, calling, describe, make_plugin

if TYPE_CHECKING:
    from dufl.learning.settings import Training

Array = npt.NDArray[Any]


class OwnAlgorithm:
    """A user-defined algorithm."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._own = make_plugin("algorithm", spec, methods=("init", "penalty", "apply"))
        self._shape: tuple[int, ...] = ()

    def init(self, weights: Vector, num_clients: int, training: "Training") -> State:
        """The state before the first round."""
        self._shape = weights.shape
        with self._calling("init"):
            state = self._own.init(_constant(weights.copy()), num_clients, training)
        return self._checked_state(state)

    def penalty(self, state: State, client: int) -> LocalPenalty:
        """The term that is added to a client's loss."""
        with self._calling(f"penalty of client {client}"):
            penalty = self._own.penalty(_constant_state(state), client)
        return self._checked_penalty(penalty, client)

    def apply(self, state: State, weights: Vector, updates: Iterable[Update]) -> tuple[Vector, State]:
        """The next global weights, as a copy, and state."""
        with self._calling("apply"):
            result = self._own.apply(
                _constant_state(state), _constant(weights.copy()), _constant_updates(updates)
            )
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._refused("what apply returns", "a pair (weights, state)", _kind(result))
        after, state = result
        rule = f"of shape {self._shape} and type float32"
        if type(after) is not np.ndarray or after.shape != self._shape or after.dtype != np.float32:
            raise self._refused("the weights that apply returns", rule, _kind(after))
        if not np.isfinite(after).all():
            raise self._refused("the weights that apply returns", "finite", "NaN or infinite values")
        return np.array(after), self._checked_state(state)

    def _checked_state(self, state: Any) -> State:
        """A read-only state that can be stored in a checkpoint."""
        rule = "a mapping from names to NumPy arrays of numbers"
        if not isinstance(state, Mapping):
            raise self._refused("the state", rule, _kind(state))
        with self._calling("reading its state"):
            vectors = dict(state)
        for name, vector in vectors.items():
            if not isinstance(name, str) or not name.isprintable():
                raise self._refused("the state", rule, f"the name {_kind(name)}")
            if type(vector) is not np.ndarray or vector.dtype.kind not in "biuf":
                raise self._refused(f"{name!r} in the state", "a NumPy array of numbers", _kind(vector))
        return MappingProxyType({name: _constant(vector) for name, vector in vectors.items()})

    def _checked_penalty(self, penalty: Any, client: int) -> LocalPenalty:
        what = f"what penalty returns for client {client}"
        if not isinstance(penalty, LocalPenalty):
            raise self._refused(what, "a LocalPenalty", _kind(penalty))
        strength, linear = _real(penalty.strength), penalty.linear
        if strength is None or not np.isfinite(strength):
            raise self._refused(
                what, "a LocalPenalty whose strength is a finite number", _kind(penalty.strength)
            )
        if linear is None:
            return LocalPenalty(strength)
        rule = f"a LocalPenalty whose linear is None or of shape {self._shape} and type float32"
        if type(linear) is not np.ndarray or linear.shape != self._shape or linear.dtype != np.float32:
            raise self._refused(what, rule, _kind(linear))
        if not np.isfinite(linear).all():
            raise self._refused(what, "a LocalPenalty whose linear is finite", "NaN or infinite values")
        return LocalPenalty(strength, _constant(linear))

    def _calling(self, when: str) -> AbstractContextManager[None]:
        return calling("algorithm", self._spec, when)

    def _refused(self, what: str, rule: str, value: str) -> InputError:
        return InputError.of(f"algorithm {describe(self._spec)!r}: {what}", rule, value)


class OwnPolicy:
    """A user-defined policy."""

    def __init__(self, spec: Spec, game: Game, seed: int) -> None:
        self._spec = spec
        self._capacity = game.clients.capacity
        methods = ("payment", "size", "step", "planned_staleness")
        self._own = make_plugin("policy", spec, game, seed, methods=methods)
        self.discard = getattr(self._own, "discard", None)

    def payment(self, round: int) -> float:
        """What the server pays in a round, to all clients together."""
        with self._calling(what := f"payment of round {round}"):
            payment = self._own.payment(round)
        number = _real(payment)
        if number is None or not 0 <= number < np.inf:
            raise self._refused(what, "a number >= 0", _kind(payment))
        return number

    def size(self, client: int) -> int:
        """The number of samples that a client holds in round 0."""
        with self._calling(what := f"size of client {client}"):
            size = self._own.size(client)
        return self._within_capacity(client, what, self._count(what, size))

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        """How many of its `size` samples a client conserves after a round, and how many it collects."""
        with self._calling(what := f"step of client {client} in round {round}"):
            step = self._own.step(client, round, size)
        if not isinstance(step, tuple) or len(step) != 2:
            raise self._refused(what, "a pair (keep, collect)", _kind(step))
        keep, collect = (self._count(what, number) for number in step)
        if keep > size:
            raise self._refused(what, f"to keep at most the {size:,} samples in the buffer", f"{keep:,}")
        self._within_capacity(client, what, keep + collect)
        return keep, collect

    def planned_staleness(self, round: int) -> float:
        """The planned mean age of all samples in a round; NaN if there is no plan."""
        with self._calling(what := f"planned_staleness of round {round}"):
            staleness = self._own.planned_staleness(round)
        number = _real(staleness)
        if number is None or np.isinf(number):
            raise self._refused(what, "a number, or NaN if none is planned", _kind(staleness))
        return number

    def _count(self, what: str, number: object) -> int:
        if not isinstance(number, Integral) or isinstance(number, bool) or not 0 <= int(number) < 2**63:
            raise self._refused(what, "integers in [0, 2^63)", _kind(number))
        return int(number)

    def _within_capacity(self, client: int, what: str, size: int) -> int:
        capacity = float(self._capacity[client])
        if size > capacity:
            rule = f"within the client's capacity of {capacity:g}"
            raise CapacityError.of(f"policy {describe(self._spec)!r}: {what}", rule, f"{size:,}")
        return size

    def _calling(self, when: str) -> AbstractContextManager[None]:
        return calling("policy", self._spec, when)

    def _refused(self, what: str, rule: str, value: str) -> InputError:
        return InputError.of(f"policy {describe(self._spec)!r}: {what}", rule, value)


def _constant(array: Array) -> Array:
    """The array as a read-only array; a copy if it is a view of a writeable one."""
    base = array.base
    if base is not None and not (isinstance(base, np.ndarray) and not base.flags.writeable):
        array = array.copy()
    array.flags.writeable = False
    return array


def _constant_state(state: State) -> State:
    """A read-only state; states that `OwnAlgorithm` returned are read-only already."""
    if isinstance(state, MappingProxyType):
        return state
    return MappingProxyType({name: _constant(vector) for name, vector in state.items()})


def _constant_updates(updates: Iterable[Update]) -> Iterator[Update]:
    for update in updates:
        yield replace(
            update, weights=_constant(update.weights), model_buffers=_constant(update.model_buffers.copy())
        )


def _real(value: object) -> float | None:
    """A number as a float; None for anything else."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _kind(value: object) -> str:
    """A short description of a plugin's return value: arrays by type and shape, numbers as they are."""
    if isinstance(value, np.ndarray):
        return f"{type(value).__name__} of {value.dtype} and shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:60] if isinstance(value, int | float | np.number | str) else type(value).__name__
