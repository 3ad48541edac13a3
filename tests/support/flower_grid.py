"""Runs of DUFL's own app on Flower, in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dufl.flower.app import Runtime, client_app, evaluation, make_strategy
from dufl.flower.in_process import InProcessGrid, Meddle
from dufl.flower.ledger import Entry, Ledger
from dufl.flower.monitoring import Observer
from dufl.flower.run_identity import IfFinished
from dufl.flower.server_store import Round
from loading import load

SMALL = ("game.num_rounds=5", "clients.count=4", "clients.initial_volume=60", "training.local_epochs=2")


class Run:
    """A run on Flower in this process."""

    def __init__(
        self,
        folder: Path,
        *changes: str,
        negotiate: bool = False,
        masked: bool = True,
        min_others: int = 0,
        meddle: Meddle | None = None,
        max_missed_rounds: int = 3,
        arrival_timeout: float = 600.0,
        observers: Sequence[Observer] = (),
        if_finished: IfFinished = "error",
    ) -> None:
        config = load(None, [*SMALL, *changes])
        folder.mkdir(exist_ok=True)
        path = folder / "config.toml"
        if not path.exists():
            path.write_text(config.to_toml())
        self.path = path
        self.folder = folder
        self.config = config
        self.runtime = Runtime(config)
        app = client_app(lambda _: (path, folder / "clients"))
        privacy = {"min-others": min_others, "allow-unmasked": not masked}
        self.grid = InProcessGrid(app, config.game.clients.size, meddle, privacy)
        self.rounds: list[Round] = []
        self.strategy, self.arrays = make_strategy(
            self.runtime,
            folder / "server",
            negotiate=negotiate,
            masked=masked,
            on_round_end=self.rounds.append,
            max_missed_rounds=max_missed_rounds,
            arrival_timeout=arrival_timeout,
            observers=observers,
            if_finished=if_finished,
        )

    def start(self) -> Any:
        rounds = self.config.game.num_rounds
        return self.strategy.start(
            self.grid, self.arrays, num_rounds=rounds, evaluate_fn=evaluation(self.runtime)
        )

    def entries(self) -> list[Entry]:
        with Ledger(self.folder / "server" / "ledger.sqlite") as ledger:
            ledger.check()
            return ledger.entries()


def in_cents(payment: float) -> int:
    """A payment in cents."""
    return round(100 * payment)
