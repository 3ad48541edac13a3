"""What every item of the reproduction shares: claims that can fail, a scale, and its files."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dufl.experiment.files import write_text
from dufl.game.parameters import Game
from dufl.game.population import Clients

Advance = Callable[[float], None]


@dataclass(frozen=True)
class Claim:
    """Something the paper shows, and whether it is so here.

    Attributes:
        statement: what is claimed.
        holds: whether it is so.
        measured: by how much, in numbers.
    """

    statement: str
    holds: bool
    measured: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", bool(self.holds))  # not NumPy's


@dataclass(frozen=True)
class Scale:
    """How large an item is run.

    Attributes:
        name: quick or paper.
        draws: how many draws of the clients' costs the items of the game are run for.
        seeds: of training, in the table.
        epochs: of local training; the paper has 20.
        datasets: of the table.
        pictures: the dataset of the figure on the server's strategy.
        steps: how often an interval is halved where a threshold is looked for.
    """

    name: str
    draws: int
    seeds: int
    epochs: int
    datasets: tuple[str, ...]
    pictures: str
    steps: int


QUICK = Scale("quick", draws=2, seeds=1, epochs=20, datasets=("digits",), pictures="digits", steps=5)
PAPER = Scale(
    "paper", draws=5, seeds=2, epochs=20, datasets=("mnist", "fmnist"), pictures="cifar10", steps=10
)
SCALES = {scale.name: scale for scale in (QUICK, PAPER)}


@dataclass(frozen=True)
class Item:
    """What came of an item."""

    name: str
    claims: list[Claim]
    settings: dict[str, Any]
    files: list[str]
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For `reproduction.json`."""
        return asdict(self) | {"holds": all(claim.holds for claim in self.claims)}


def game_of(draw: int, **values: Any) -> Game:
    """The paper's game with one draw of the clients' costs."""
    return Game(clients=Clients.draw(15, draw), **values)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write a CSV file with one line a row."""
    listed = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(listed[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    write_text(path, text.getvalue())
    return path
