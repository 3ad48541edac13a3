"""Plugins that do what they should not: results do not depend on it, and messages say whose fault it is."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dufl.errors import CapacityError, DuflError, InputError, PluginError, RemoteError, plugin_traceback
from dufl.experiment.train import train
from dufl.learning.algorithm import LocalPenalty, Mean, Update, Vector
from dufl.learning.engine import Engine, Score, Which
from dufl.learning.federation import Federation
from dufl.learning.settings import Training
from dufl.learning.task import Task
from federations import facts, federation_of, small
from loading import pausing

HERE = "test_plugins"


def play(*changes: str, rounds: int = 3) -> tuple[Federation, list[dict[str, Any]]]:
    federation, engine = federation_of(small("policy=static", *changes))
    try:
        return federation, [facts(federation.play()) for _ in range(rounds)]
    finally:
        engine.close()


class Plain:
    """FedAvg as a user would write it; the others are this one with a fault."""

    def init(self, weights: Vector, num_clients: int, training: Training) -> Any:
        return {"mean": np.zeros_like(weights)}

    def penalty(self, state: Any, client: int) -> Any:
        return LocalPenalty(0.1, state["mean"])

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        mean = Mean()
        for update in updates:
            mean.add(update.weights, update.volume)
        return mean.value(weights), {"mean": np.zeros_like(weights)}


class ChangesWeights(Plain):
    """Adds up in the weights it was given."""

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        for update in updates:
            weights += update.weights / 4
        return weights, state


class ChangesUpdates(Plain):
    """Writes into an update."""

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        for update in updates:
            update.weights *= 0  # type: ignore[misc]
        return weights, state


class ChangesBuffers(Plain):
    """Writes into what else a client sent."""

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        for update in updates:
            update.model_buffers[:] = 0
        return weights, state


class ChangesState(Plain):
    """Writes into a vector of the state."""

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        state["mean"][0] = 1
        return weights, state


class ChangesStateInPull(Plain):
    """Replaces a vector of the state for a client."""

    def penalty(self, state: Any, client: int) -> Any:
        state["mean"] = state["mean"] + client
        return LocalPenalty()


class ChangesTheStart(Plain):
    """Writes into the first weights."""

    def init(self, weights: Vector, num_clients: int, training: Training) -> Any:
        weights[:] = 1
        return {}


class ChangesItsState(Plain):
    """Writes into what it returned in the last round."""

    def init(self, weights: Vector, num_clients: int, training: Training) -> Any:
        self.kept = np.zeros_like(weights)
        return {"mean": self.kept}

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        self.kept += 1
        return weights, {"mean": self.kept}


@pytest.mark.parametrize(
    "fault",
    [
        ChangesWeights,
        ChangesUpdates,
        ChangesBuffers,
        ChangesState,
        ChangesStateInPull,
        ChangesTheStart,
        ChangesItsState,
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_plugin_is_given_cannot_be_changed(fault: type, workers: int) -> None:
    with pytest.raises(PluginError, match=f"^the algorithm '{HERE}:{fault.__name__}' raised ") as caught:
        play(f"algorithm={HERE}:{fault.__name__}", f"workers={workers}")
    assert isinstance(caught.value.__cause__, ValueError | TypeError)
    assert any(word in str(caught.value) for word in ("read-only", "does not support item assignment"))


class KeepsItsMemory(Plain):
    """Returns the same array every time, and writes into it while clients still train from it."""

    def init(self, weights: Vector, num_clients: int, training: Training) -> Any:
        self.kept = np.zeros_like(weights)
        return {}

    def penalty(self, state: Any, client: int) -> Any:
        return LocalPenalty()

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        for count, update in enumerate(updates):
            self.kept[:] = (self.kept * count + update.weights) / (count + 1)
        return self.kept, {}


@pytest.mark.parametrize("algorithm", [Plain, KeepsItsMemory])
def test_an_own_algorithm_gives_the_same_for_any_number_of_workers(algorithm: type) -> None:
    change = ("clients.count=9", f"algorithm={HERE}:{algorithm.__name__}")
    (first, records), *others = (play(*change, f"workers={n}") for n in (1, 2, 4))
    for federation, same in others:
        np.testing.assert_array_equal(federation.weights, first.weights)
        assert same == records


def test_an_own_algorithm_is_not_changed_by_being_called_with_care() -> None:
    class Same(Plain):
        def penalty(self, state: Any, client: int) -> Any:
            return LocalPenalty()

    globals()["Same"] = Same
    np.testing.assert_array_equal(play(f"algorithm={HERE}:Same")[0].weights, play()[0].weights)


# who is used, refused and paid


class Faulty:
    """An engine some of whose clients send nonsense, and one of whose clients may end it."""

    def __init__(self, engine: Engine, wrong: set[int], ends: dict[int, Exception]) -> None:
        self._engine, self._wrong, self._ends = engine, wrong, ends
        self.start, self.named, self.close = engine.start, engine.named, engine.close

    def train(self, weights: Vector, model_buffers: Vector, tasks: Iterable[Task]) -> Iterator[Update]:
        for update in self._engine.train(weights, model_buffers, tasks):
            if update.client in self._ends:
                raise self._ends[update.client]
            wrong = update.client in self._wrong
            yield replace(update, weights=update.weights * np.nan) if wrong else update

    def evaluate(self, weights: Vector, model_buffers: Vector, which: Which | None = None) -> Score:
        return self._engine.evaluate(weights, model_buffers, which)


def faulty(algorithm: str, wrong: Iterable[int] = (), ends: dict[int, Exception] | None = None) -> Any:
    config = small(f"algorithm={algorithm}", "clients.count=6", "policy=test_federation:Refresh")
    _, engine = federation_of(config)
    try:
        federation, _ = federation_of(config, engine=Faulty(engine, set(wrong), ends or {}))
        federation.play()
        return federation.play()
    finally:
        engine.close()


class ReadsOne(Plain):
    """Stops after the first update."""

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        for update in updates:
            return np.array(update.weights), state
        return weights, state


class ReadsNone(Plain):
    """Looks at no update."""

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        return weights, state


class ReadsTwice(Plain):
    """Looks for more updates when there are none left."""

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        made = super().apply(state, weights, updates)
        return made if not list(updates) else None


@pytest.mark.parametrize("algorithm", [ReadsOne, ReadsNone, ReadsTwice])
def test_who_is_used_refused_and_paid_does_not_depend_on_how_far_is_read(algorithm: type) -> None:
    record = faulty(f"{HERE}:{algorithm.__name__}", wrong=(1, 4))
    assert record.participants == 4
    assert record.refused == dict.fromkeys(("1", "4"), "weights that are not a number")
    assert record.payment == 10
    assert record.payment == faulty("fedavg", wrong=(1, 4)).payment


class Hides(Plain):
    """Keeps quiet about whatever goes wrong."""

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        try:
            return super().apply(state, weights, updates)
        except Exception:
            return weights, state


@pytest.mark.parametrize("algorithm", [Plain, Hides, ReadsOne])
@pytest.mark.parametrize("error", [InputError("client 3 is ill"), MemoryError("no more"), OSError("away")])
def test_a_failure_in_training_is_neither_hidden_nor_blamed_on_the_algorithm(
    algorithm: type, error: Exception
) -> None:
    with pytest.raises(type(error)) as caught:
        faulty(f"{HERE}:{algorithm.__name__}", ends={3: error})
    assert caught.value is error


# what an algorithm returns


def returning(**results: Any) -> str:
    """The path of an algorithm that returns other things than it should."""

    class Odd(Plain):
        def init(self, weights: Vector, num_clients: int, training: Training) -> Any:
            return results.get("init", {})

        def penalty(self, state: Any, client: int) -> Any:
            return results.get("penalty", LocalPenalty())

        def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
            return results["apply"](weights) if "apply" in results else (weights, {})

    globals()["Odd"] = Odd
    return f"algorithm={HERE}:Odd"


BAD_STATES = [
    (None, "the state must be a mapping from names to NumPy arrays of numbers, got NoneType"),
    ([1.0], "the state must be a mapping .*, got list"),
    ({1: np.zeros(3)}, "the state must be a mapping .*, got the name 1"),
    ({"a\0b": np.zeros(3)}, r"the state must be a mapping .*, got the name 'a\\x00b'"),
    (
        {"object": np.array([{}, None])},
        "'object' in the state must be a NumPy array of numbers, got .*object",
    ),
    ({"text": np.array(["a"])}, "'text' in the state must be a NumPy array of numbers, got ndarray of <U1"),
    ({"complex": np.zeros(3, complex)}, "'complex' in the state must be .*, got ndarray of complex128"),
    ({"list": [1.0, 2.0]}, "'list' in the state must be a NumPy array of numbers, got list"),
    ({"number": 3}, "'number' in the state must be a NumPy array of numbers, got 3"),
    ({"masked": np.ma.zeros(3)}, "'masked' in the state must be .*, got MaskedArray"),
]


@pytest.mark.parametrize(("state", "says"), BAD_STATES)
def test_states_that_a_checkpoint_cannot_hold(state: Any, says: str) -> None:
    with pytest.raises(InputError, match=f"^algorithm '{HERE}:Odd': {says}"):
        play(returning(init=state))
    with pytest.raises(InputError, match=f"^algorithm '{HERE}:Odd': {says}"):
        play(returning(apply=lambda weights: (weights, state)))


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint64, np.float16, np.float64])
def test_states_that_a_checkpoint_can_hold(kind: Any, tmp_path: Path) -> None:
    state = {"matrix": np.ones((2, 3), kind), "none": np.zeros((0, 2), kind), "one": np.array(1, kind)}
    change = returning(init=state, apply=lambda weights: (weights, state))
    seen: list[Any] = []
    config = small(change, "game.num_rounds=3")
    train(config, out=tmp_path / "run", callbacks=[pausing(lambda: len(seen) >= 1), seen.append])
    assert train(config, out=tmp_path / "run", resume=True).finished


class Degenerates(Plain):
    """Its state holds objects from the third round on."""

    def init(self, weights: Vector, num_clients: int, training: Training) -> Any:
        return {"round": np.zeros(1, int)}

    def penalty(self, state: Any, client: int) -> Any:
        return LocalPenalty()

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        after = state["round"] + 1
        return super().apply(state, weights, updates)[0], {"round": after if after < 3 else np.array([{}])}


def test_a_state_that_goes_bad_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = small(f"algorithm={HERE}:Degenerates", "checkpoint_every=1")
    says = (
        f"^algorithm '{HERE}:Degenerates': 'round' in the state must be a NumPy array of numbers, got .*obj"
    )
    with pytest.raises(InputError, match=says):
        train(config, out=tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.npz").read_bytes()
    with np.load(tmp_path / "run" / "checkpoint.npz") as kept:
        assert int(kept["round"]) == 2
        assert kept["algorithm round"].tolist() == [2]
    with pytest.raises(InputError, match=says):
        train(config, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "checkpoint.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda w: None, r"what apply returns must be a pair \(weights, state\), got NoneType"),
        (lambda w: [w, {}], r"what apply returns must be a pair \(weights, state\), got list"),
        (lambda w: (w, {}, 1), r"what apply returns must be a pair .*, got a tuple of 3"),
        (lambda w: w, r"what apply returns must be a pair .*, got ndarray of float32 and shape \(650,\)"),
        (
            lambda w: (w[:-1], {}),
            r"the weights that apply returns must be of shape \(650,\) and type float32",
        ),
        (lambda w: (w.astype(float), {}), r"must be of shape .*, got ndarray of float64 and shape \(650,\)"),
        (lambda w: (list(w), {}), "the weights that apply returns must be of shape .*, got list"),
        (lambda w: (None, {}), "the weights that apply returns must be of shape .*, got NoneType"),
        (lambda w: (w * np.nan, {}), "the weights that apply returns must be finite, got NaN"),
        (lambda w: (w + np.float32(np.inf), {}), "the weights that apply returns must be finite"),
    ],
)
def test_what_apply_returns(made: Any, says: str) -> None:
    with pytest.raises(InputError, match=f"^algorithm '{HERE}:Odd': .*{says}"):
        play(returning(apply=made))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "a LocalPenalty, got NoneType"),
        ((0.0, None), "a LocalPenalty, got a tuple of 2"),
        (LocalPenalty("strong"), "a LocalPenalty whose strength is a finite number, got 'strong'"),  # type: ignore[arg-type]
        (LocalPenalty(np.nan), "a LocalPenalty whose strength is a finite number, got nan"),
        (LocalPenalty(10**400), "a LocalPenalty whose strength is a finite number"),
        (
            LocalPenalty(1, np.zeros(3, np.float32)),
            r"a LocalPenalty whose linear is None or of shape \(650,\) and type float",
        ),
        (LocalPenalty(1, np.zeros(650)), "a LocalPenalty whose linear is .*, got ndarray of float64"),  # type: ignore[arg-type]
        (LocalPenalty(1, np.full(650, np.inf, np.float32)), "a LocalPenalty whose linear is finite"),
    ],
)
def test_what_pull_returns(made: Any, says: str) -> None:
    with pytest.raises(
        InputError, match=f"^algorithm '{HERE}:Odd': what penalty returns for client 0 must be {says}"
    ):
        play(returning(penalty=made))


# what a policy returns


def policy(**results: Any) -> str:
    """The path of a policy that returns other things than it should, or raises them."""

    class Odd:
        def __init__(self, game: Any, seed: int) -> None:
            pass

        def _said(self, name: str, otherwise: Any) -> Any:
            said = results.get(name, otherwise)
            if isinstance(said, BaseException):
                raise said
            return said

        def payment(self, round: int) -> Any:
            return self._said("payment", 1.0)

        def size(self, client: int) -> Any:
            return self._said("size", 20)

        def step(self, client: int, round: int, size: int) -> Any:
            return self._said("step", (size, 0))

        def planned_staleness(self, round: int) -> Any:
            return self._said("planned_staleness", float("nan"))

    globals()["OddPolicy"] = Odd
    return f"policy={HERE}:OddPolicy"


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ({"payment": None}, "payment of round 0 must be a number >= 0, got NoneType"),
        ({"payment": -1}, "payment of round 0 must be a number >= 0, got -1"),
        ({"payment": float("nan")}, "payment of round 0 must be a number >= 0, got nan"),
        ({"payment": 10**5000}, "payment of round 0 must be a number >= 0, got an integer of 16610 bits"),
        ({"payment": "3"}, "payment of round 0 must be a number >= 0, got '3'"),
        ({"size": 10**5000}, "size of client 0 must be integers in .*, got an integer of 16610 bits"),
        ({"step": (0, 2**63)}, "step of client 0 in round 0 must be integers in .*, got 9223372036854775808"),
        ({"size": 2.0}, "size of client 0 must be integers in .*, got 2.0"),
        ({"size": True}, "size of client 0 must be integers in .*, got True"),
        ({"size": None}, "size of client 0 must be integers in .*, got NoneType"),
        ({"step": None}, r"step of client 0 in round 0 must be a pair \(keep, collect\), got NoneType"),
        ({"step": [1, 2]}, "step of client 0 in round 0 must be a pair .*, got list"),
        ({"step": (1, 2, 3)}, "step of client 0 in round 0 must be a pair .*, got a tuple of 3"),
        ({"step": (1, -1)}, "step of client 0 in round 0 must be integers in .*, got -1"),
        ({"step": (0.5, 1)}, "step of client 0 in round 0 must be integers in .*, got 0.5"),
        (
            {"step": (21, 0)},
            "step of client 0 in round 0 must be to keep at most the 20 samples in the buffer, got 21",
        ),
        (
            {"planned_staleness": None},
            "planned_staleness of round 0 must be a number, or NaN .*, got NoneType",
        ),
        ({"planned_staleness": float("inf")}, "planned_staleness of round 0 must be a number, .*, got inf"),
    ],
)
def test_what_a_policy_returns(results: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"^policy '{HERE}:OddPolicy': {says}"):
        play(policy(**results))


def test_a_policy_may_return_numpy_numbers() -> None:
    given = {"payment": np.float32(2), "size": np.int32(20), "step": (np.int64(9), np.uint8(3))}
    _, records = play(policy(**given, planned_staleness=np.float64("nan")))
    assert records[1]["volumes"] == [12] * 4
    assert records[1]["payment"] == 2


@pytest.mark.parametrize("many", [10**12, 2**62])
def test_more_samples_than_memory_holds_are_refused_at_once(many: int) -> None:
    fits = r"at most [\d,]+, as many as fit into this machine's memory, got "
    by = f"by the policy must be {fits}"
    with pytest.raises(InputError, match=f"^the number of samples of client 0 in round 0 {by}{many:,}$"):
        play(policy(size=many))
    with pytest.raises(InputError, match=f"the number of samples of client 0 in round 1 {by}{many + 20:,}$"):
        play(policy(step=(20, many)))


def test_a_plan_for_more_samples_than_memory_holds_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"^the number of samples of client 0 in round 0 by the policy"):
        play("clients.initial_volume=1e12", "policy=static")


def test_all_clients_together_have_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dufl.data.samples.memory", lambda: 60 * (96 + 64 * 4))
    play(policy(size=50))
    with pytest.raises(InputError, match=r"^the number of samples of client 0 .* at most 60, .* got 61$"):
        play(policy(size=61))
    with pytest.raises(
        InputError, match=r"^the number of samples of all clients .* at most 220, .* got 240$"
    ):
        play(policy(size=60))


def test_a_policy_keeps_to_the_capacity_of_the_clients() -> None:
    play("clients.capacity=30", policy(step=(10, 20)))
    says = (
        f"^policy '{HERE}:OddPolicy': step of client 0 in round 0 must be within the client's capacity of 30"
    )
    with pytest.raises(CapacityError, match=f"{says}, got 31$"):
        play("clients.capacity=30", policy(step=(10, 21)))


# what plugins raise


class Raises:
    """Cannot be made."""

    def __init__(self, *_: Any) -> None:
        raise RuntimeError("not today\nand not tomorrow")


class Exits(Plain):
    """Ends the program."""

    def penalty(self, state: Any, client: int) -> Any:
        raise SystemExit(3)


class Speechless(Plain):
    """Raises an exception that cannot be shown."""

    def apply(self, state: Any, weights: Vector, updates: Iterable[Update]) -> Any:
        class MuteError(Exception):
            def __str__(self) -> str:
                raise ValueError("no words")

        raise MuteError


class Refuses(Plain):
    """Says itself what is wrong."""

    def init(self, weights: Vector, num_clients: int, training: Training) -> Any:
        raise InputError("this algorithm must not be used on Mondays")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (f"algorithm={HERE}:Raises", f"^the algorithm '{HERE}:Raises' raised RuntimeError: not today$"),
        (f"policy={HERE}:Raises", f"^the policy '{HERE}:Raises' raised RuntimeError: not today$"),
        (f"algorithm={HERE}:Exits", r"raised SystemExit: 3 \(penalty of client 0\)$"),
        (f"algorithm={HERE}:Speechless", r"raised .*Mute.* \(apply\)$"),
    ],
)
def test_an_exception_says_whose_it_is(change: str, says: str) -> None:
    with pytest.raises(PluginError, match=says) as caught:
        play(change)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    trace = plugin_traceback(caught.value.__cause__)
    assert trace.startswith("Traceback")
    assert "test_plugins.py" in trace
    assert "dufl/learning" not in trace


@pytest.mark.parametrize("name", ["payment", "size", "step", "planned_staleness"])
def test_every_function_of_a_policy_may_raise(name: str) -> None:
    with pytest.raises(PluginError, match=rf"^the policy '{HERE}:OddPolicy' raised KeyError: 7 \({name} of "):
        play(policy(**{name: KeyError(7)}))


def test_what_a_plugin_refuses_itself_is_left_as_it_is() -> None:
    with pytest.raises(InputError, match=r"^this algorithm must not be used on Mondays$"):
        play(f"algorithm={HERE}:Refuses")


def test_a_plugin_without_its_functions() -> None:
    for change, missing in (
        ("algorithm=collections:Counter", "init, penalty, apply"),
        ("policy=builtins:slice", "payment, size, step, planned_staleness"),
    ):
        with pytest.raises(InputError, match=f"must be one with {missing}, got "):
            play(change)


# models


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "Fails",
            r"^the model 'odd_models:Fails' raised ValueError: too bright \(training client 5 in round 2\)$",
        ),
        ("Tuple", r"^the output of model 'odd_models:Tuple' must be of shape \(9, 10\) for .*, got tuple$"),
        ("Short", r"^the output of model 'odd_models:Short' must be of shape \(9, 10\) .*, got \(8, 10\)$"),
        ("Untested", r"^the model 'odd_models:Untested' raised OSError: away \(while it was tested\)$"),
        (
            "Constant",
            r"^the model 'odd_models:Constant' raised RuntimeError: .*grad.* \(training client 5 in",
        ),
        ("Lost", r"^0.weight of model 'odd_models:Lost' must be finite real numbers at the start"),
        ("Ends", r"^the model 'odd_models:Ends' raised SystemExit: 4 \(training client 5 in round 2\)$"),
    ],
)
def test_a_model_that_fails_later(name: str, says: str) -> None:
    pytest.importorskip("torch")
    from dufl.learning.local import LocalModel

    settings = small(f"model=odd_models:{name}").training
    numbers = np.arange(9)
    task = Task(5, 2, numbers, numbers, numbers, numbers, LocalPenalty())
    features = np.ones((9, 1, 8, 8), np.float32)

    def use() -> None:
        model = LocalModel(settings, "cpu", (1, 8, 8), 10)
        weights, model_buffers, _ = model.train(*model.state(), features, task)
        model.evaluate(weights, model_buffers, features, numbers)

    with pytest.raises(DuflError, match=says) as caught:
        use()
    if isinstance(cause := caught.value.__cause__, ValueError | OSError):
        assert "odd_models.py" in plugin_traceback(cause)
        assert "dufl/learning" not in plugin_traceback(cause)


def test_the_traceback_of_a_model_comes_from_its_worker() -> None:
    pytest.importorskip("torch")
    with pytest.raises(
        PluginError, match=r"^the model 'odd_models:Fails' raised ValueError: too br"
    ) as caught:
        play("model=odd_models:Fails", "workers=1", "device=cpu")
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteError)
    trace = plugin_traceback(cause)
    assert trace.startswith("Traceback")
    assert "odd_models.py" in trace
    assert "and too loud" in trace
    assert "dufl/learning" not in trace
