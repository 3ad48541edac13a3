"""What every item of the reproduction shares: claims that can fail, a scale, and its files."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dufl.experiment.config import Changes
from dufl.experiment.files import write_text
from dufl.game.parameters import Game
from dufl.game.population import Clients

NO_CHANGES: Changes = {}


class Advance(Protocol):
    """Told how much of an item is done and, if it is long, what is at work."""

    def __call__(self, share: float, now: str = "") -> None:
        """Show it."""


def unwatched(share: float, now: str = "") -> None:
    """Nobody looks."""


@dataclass(frozen=True)
class Finding:
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
        seeds: of training, for the runs of logistic regression; others are trained once.
        epochs: of local training; the paper has 20.
        datasets: of the table.
        found: whether datasets of the table that are not on this machine are left out.
        pictures: the dataset of the figure on the server's strategy.
        leaders: the dataset on which the two leaders are compared.
        steps: how often an interval is halved where a threshold is looked for.
    """

    name: str
    draws: int
    seeds: int
    local_epochs: int
    datasets: tuple[str, ...]
    found: bool
    images: str
    leaders: str
    steps: int


QUICK = Scale(
    "quick",
    draws=2,
    seeds=1,
    local_epochs=20,
    datasets=("digits", "mnist", "fmnist"),
    found=True,
    images="digits",
    leaders="digits",
    steps=5,
)
PAPER = Scale(
    "paper",
    draws=5,
    seeds=2,
    local_epochs=20,
    datasets=("mnist", "fmnist", "svhn", "cifar10", "cifar100"),
    found=False,
    images="cifar10",
    leaders="fmnist",
    steps=10,
)
SCALES = {scale.name: scale for scale in (QUICK, PAPER)}


@dataclass(frozen=True)
class Item:
    """What came of an item.

    Attributes:
        name: of the item.
        claims: of the paper, checked.
        settings: with which it was run, in words that people read.
        files: that were written.
        notes: what experiments on a difference from the paper found, a sentence or two each.
        rows: the numbers themselves, where people want to see them beside the claims.
        seconds: of training, also in earlier calls; 0 if nothing is trained.
    """

    name: str
    claims: list[Finding]
    settings: dict[str, Any]
    files: list[str]
    notes: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For `reproduction.json`."""
        return asdict(self) | {"holds": all(claim.holds for claim in self.claims)}


def game_of(draw: int, **values: Any) -> Game:
    """The paper's game with one draw of the clients' costs."""
    return Game(clients=Clients.draw(15, draw), **values)


def settings_of(game: Game) -> dict[str, Any]:
    """What is told of a game beside its results."""
    return {"rounds": game.num_rounds, "clients": game.clients.size}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write a CSV file with one line a row."""
    listed = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(listed[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    write_text(path, text.getvalue())
    return path
