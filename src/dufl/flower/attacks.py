"""Clients that cheat with their data: what it does to a model, and whether the audit notices.

The federation is simulated without messages. Clients, data, training, audit and payments are those of a run
on Flower. All payment rules are applied to the same training, because payments do not change it.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from dufl.data.datasets import Dataset
from dufl.data.recording import Recording
from dufl.errors import InputError
from dufl.experiment.config import Experiment
from dufl.experiment.service import PaymentRule, Unit
from dufl.flower.audit import Audit
from dufl.flower.contribution import Arrays
from dufl.flower.ledger import Ledger
from dufl.flower.payment import Claim
from dufl.learning.algorithm import Update, Vector
from dufl.learning.engine import Engine, make_engine
from dufl.learning.federation import Federation
from dufl.learning.task import Task

if TYPE_CHECKING:
    from rich.table import Table

Data = Callable[[Task, Task, np.random.Generator], Task]


def _shuffled(task: Task, _: Task, generator: np.random.Generator) -> Task:
    """The labels are shuffled."""
    return replace(task, labels=generator.permutation(task.labels))


def _taken(task: Task, source: Task, rows: Any, ages: Any) -> Task:
    chosen = {name: getattr(source, name)[rows] for name in ("indices", "labels", "ids")}
    return replace(task, ages=ages, **chosen)


def _duplicates(task: Task, _: Task, generator: np.random.Generator) -> Task:
    """One sample of the round, as often as samples are due."""
    rows = np.full(len(task.labels), generator.integers(len(task.labels)))
    return _taken(task, task, rows, task.ages[rows])


def _one_sample(task: Task, first: Task, _: np.random.Generator) -> Task:
    """One sample of the first round, as often as samples are due."""
    rows = np.zeros(len(task.labels), np.int64)
    return _taken(task, first, rows, np.ones(len(rows), np.int64))


def _recycled(task: Task, first: Task, _: np.random.Generator) -> Task:
    """The samples of the first round, sold as fresh."""
    rows = np.resize(np.arange(len(first.labels)), len(task.labels))
    return _taken(task, first, rows, first.ages[rows] + task.round - first.round)


def _honest(task: Task, _: Task, __: np.random.Generator) -> Task:
    """The samples that are due."""
    return task


ATTACKS: Mapping[str, Data] = {
    "none": _honest,
    "shuffled labels": _shuffled,
    "duplicates": _duplicates,
    "one sample": _one_sample,
    "recycled": _recycled,
    "echo": _honest,
}
RULES: Sequence[PaymentRule] = get_args(PaymentRule)


class DishonestEngine:
    """An engine in which some clients cheat.

    Args:
        engine: trains.
        attack: the name of an attack.
        cheats: the clients that cheat.
        seed: of what cheats choose at random.
        on_updates: called with the round, the weights that were sent out, the tasks and the updates.
    """

    def __init__(
        self,
        engine: Engine,
        attack: str,
        cheats: Collection[int],
        seed: int,
        on_updates: Callable[[int, Vector, list[Task], list[Update]], None],
    ) -> None:
        self._engine, self._attack, self._cheats, self._seed = engine, attack, frozenset(cheats), seed
        self._first: dict[int, Task] = {}
        self._on_updates = on_updates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def train(self, weights: Vector, model_buffers: Vector, tasks: Iterable[Task]) -> Iterator[Update]:
        """Train every client, on what it says is its data."""
        given = [self._data(task) for task in tasks]
        updates = [
            self._sent(weights, update) for update in self._engine.train(weights, model_buffers, given)
        ]
        if updates:
            self._on_updates(given[0].round, weights, given, updates)
        yield from updates

    def _data(self, task: Task) -> Task:
        if task.client not in self._cheats:
            return task
        first = self._first.setdefault(task.client, task)
        generator = np.random.default_rng([self._seed, task.client, task.round + 1, 13])
        return ATTACKS[self._attack](task, first, generator)

    def _sent(self, weights: Vector, update: Update) -> Update:
        """What a client sends: an echo is the model that it received."""
        echoes = self._attack == "echo" and update.client in self._cheats
        return replace(update, weights=weights.copy()) if echoes else update


@dataclass(frozen=True)
class Outcome:
    """A run with clients that cheat.

    Attributes:
        attack: its name.
        seed: of the run.
        accuracy: of the model after the last round.
        caught: the number of rounds after which a payment of a cheat was held back first; None if none was.
        accused: the number of honest clients from which anything was held back in any round.
        honest: the number of honest clients.
        paid: by payment rule, what the cheats are owed, as a share of all payments of the run.
        audit_seconds: that an audit took on average.
    """

    attack: str
    seed: int
    accuracy: float
    caught: int | None
    accused: int
    honest: int
    paid: Mapping[PaymentRule, float]
    audit_seconds: float


def run_attack(
    experiment: Experiment,
    dataset: Dataset | Recording,
    attack: str,
    cheats: Collection[int] = (0,),
    num_rounds: int | None = None,
) -> Outcome:
    """Train with clients that cheat, audit the updates, and pay by every rule.

    Args:
        experiment: the federation. Its policy, usually the plan of the server, sets volumes and payments.
        dataset: of the experiment.
        attack: one of `ATTACKS`.
        cheats: the clients that cheat.
        num_rounds: stop after this number of rounds.
    """
    if attack not in ATTACKS:
        raise InputError.of("attack", f"one of {', '.join(ATTACKS)}", attack)
    experiment = experiment.fitted(dataset)
    game, settings, service = experiment.game, experiment.training, experiment.service
    if not set(cheats) < set(range(game.clients.size)):
        raise InputError.of("cheats", f"some, but not all, of {game.clients.size} clients", sorted(cheats))
    data = experiment.data.client_data(dataset, game, settings.seed)
    policy = experiment.make_policy(data)
    data = data.discarding(getattr(policy, "discard", None))
    engine = make_engine(data, settings, game.clients.size)

    def loss(round: int, arrays: Arrays) -> float:
        which = data.recent_test(round, service.audit_samples)
        return engine.evaluate(arrays["weights"], engine.start[1], which).loss

    cashier = _Cashier(Audit(loss, share=1.0), Unit.parse(service.unit), policy.payment, set(cheats))
    with ExitStack() as stack:
        stack.callback(engine.close)
        cashier.open(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack)
        dishonest = DishonestEngine(engine, attack, cheats, settings.seed, cashier.pay)
        federation = Federation(game, data, policy, settings, dishonest)
        for _ in range(min(num_rounds or game.num_rounds, game.num_rounds)):
            record = federation.play()
        return cashier.outcome(attack, settings.seed, record.accuracy, game.clients.size)


class _Cashier:
    """Audits the updates of every round, and pays by every rule."""

    def __init__(
        self, audit: Audit, unit: Unit, payment: Callable[[int], float], cheats: Collection[int]
    ) -> None:
        self._audit, self._unit, self._payment, self._cheats = audit, unit, payment, cheats
        self._ledgers: dict[PaymentRule, Ledger] = {}
        self._seconds: list[float] = []

    def open(self, folder: Path, stack: ExitStack) -> None:
        """Open a ledger for every rule."""
        for rule in RULES:
            self._ledgers[rule] = stack.enter_context(Ledger(folder / f"{rule}.sqlite", self._unit))

    def pay(self, round: int, weights: Vector, tasks: list[Task], updates: list[Update]) -> None:
        """Audit and pay the updates of a round."""
        returned = {update.client: {"weights": update.weights} for update in updates}
        volumes = {update.client: update.volume for update in updates}
        scores = self._audit.assess(round, {"weights": weights}, returned, volumes)
        self._seconds.append(self._audit.seconds)
        ages = {task.client: float(task.ages.mean()) for task in tasks}
        claims = [Claim(client, n, n, max(ages[client], 1.0), 0) for client, n in volumes.items()]
        for rule, ledger in self._ledgers.items():
            ledger.pay(round, self._payment(round), claims, rule=rule, scores=scores)

    def outcome(self, attack: str, seed: int, accuracy: float, num_clients: int) -> Outcome:
        """What all that came to."""
        held: dict[int, int] = {}
        for entry in self._ledgers["audited"].entries():
            if entry.held:
                held.setdefault(entry.client, entry.round + 1)
        cheats = self._cheats if attack != "none" else set()
        return Outcome(
            attack,
            seed,
            accuracy,
            min((held[client] for client in cheats if client in held), default=None),
            len(set(held) - set(cheats)),
            num_clients - len(cheats),
            {rule: _share(ledger, self._cheats) for rule, ledger in self._ledgers.items()},
            float(np.mean(self._seconds)),
        )


def _share(ledger: Ledger, clients: Collection[int]) -> float:
    """What is owed to some clients, as a share of all payments."""
    total = ledger.total()
    owed = sum(entry.owed + entry.released for entry in ledger.entries() if entry.client in clients)
    return owed / total if total else 0.0


def summary(outcomes: Sequence[Outcome], within: Sequence[int] = (10, 20)) -> dict[str, Any]:
    """The outcomes of one attack in several runs, in a few numbers."""
    caught = [outcome.caught for outcome in outcomes if outcome.caught is not None]
    return {
        "attack": outcomes[0].attack,
        "runs": len(outcomes),
        "accuracy": float(np.mean([outcome.accuracy for outcome in outcomes])),
        "paid": {rule: float(np.mean([outcome.paid[rule] for outcome in outcomes])) for rule in RULES},
        "caught": {str(n): sum(round <= n for round in caught) for n in within},
        "caught_after": float(np.median(caught)) if caught else None,
        "accused": sum(outcome.accused for outcome in outcomes),
        "honest": sum(outcome.honest for outcome in outcomes),
        "audit_seconds": float(np.mean([outcome.audit_seconds for outcome in outcomes])),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }


def attack_table(results: Sequence[Mapping[str, Any]]) -> "Table":
    """The table that `dufl flower attack` prints."""
    from rich.table import Table

    runs = f"{results[0]['runs']} runs"
    title = f"What cheats are paid under each rule, and by which round they are caught ({runs})"
    table = Table(title=title, title_justify="left")
    table.add_column("attack", no_wrap=True)
    for column in ("accuracy", *RULES, f"by {'/'.join(results[0]['caught'])}", "median", "accused"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in results:
        paid = (f"{100 * row['paid'][rule]:.1f} %" for rule in RULES)
        found = "never" if row["caught_after"] is None else f"{row['caught_after']:g}"
        caught = "/".join(map(str, row["caught"].values()))
        when = ("", "") if row["attack"] == "none" else (caught, found)
        accused = f"{row['accused']} of {row['honest']:,}"
        table.add_row(row["attack"], f"{100 * row['accuracy']:.1f} %", *paid, *when, accused)
    return table
