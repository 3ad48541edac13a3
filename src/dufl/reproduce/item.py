"""What all items of the reproduction share: claims that can fail, scales, and output files."""

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
    """A callback for the progress of an item."""

    def __call__(self, share: float, now: str = "") -> None:
        """Called with the completed share of the work and, for long items, the current step."""


def unwatched(share: float, now: str = "") -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Finding:
    """A claim, and whether it holds here.

    Attributes:
        statement: the claim.
        holds: whether it holds.
        measured: the measured values, as text.
    """

    statement: str
    holds: bool
    measured: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", bool(self.holds))  # not a NumPy bool


@dataclass(frozen=True)
class Scale:
    """The scale of a reproduction.

    Attributes:
        name: quick or paper.
        draws: the number of draws of the clients' costs in items without training.
        seeds: the number of training seeds for logistic regression; other models are trained once.
        local_epochs: epochs of local training per round; the paper has 20.
        datasets: of the table.
        skip_missing: whether datasets of the table that are not on this machine are skipped.
        images: the dataset of the figure on the server's strategy.
        leaders: the dataset on which the two leaders are compared.
        steps: the number of bisection steps in the search for a threshold.
    """

    name: str
    draws: int
    seeds: int
    local_epochs: int
    datasets: tuple[str, ...]
    skip_missing: bool
    images: str
    leaders: str
    steps: int


QUICK = Scale(
    "quick",
    draws=2,
    seeds=1,
    local_epochs=20,
    datasets=("digits", "mnist", "fmnist"),
    skip_missing=True,
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
    skip_missing=False,
    images="cifar10",
    leaders="fmnist",
    steps=10,
)
SCALES = {scale.name: scale for scale in (QUICK, PAPER)}


@dataclass(frozen=True)
class Item:
    """The result of an item.

    Attributes:
        name: of the item.
        claims: the checked claims.
        settings: the settings of the item, as shown to readers.
        files: the names of the files that were written.
        notes: results of experiments that explain differences from the paper, one or two sentences each.
        rows: the numbers, if they are shown beside the claims.
        seconds: the training time, including earlier calls; 0 if nothing is trained.
    """

    name: str
    claims: list[Finding]
    settings: dict[str, Any]
    files: list[str]
    notes: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The item as a dictionary for `reproduction.json`."""
        return asdict(self) | {"holds": all(claim.holds for claim in self.claims)}


def game_of(draw: int, **values: Any) -> Game:
    """The paper's game with one draw of the clients' costs."""
    return Game(clients=Clients.draw(15, draw), **values)


def settings_of(game: Game) -> dict[str, Any]:
    """The settings of a game that are shown beside its results."""
    return {"rounds": game.num_rounds, "clients": game.clients.size}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write a CSV file with one line per row."""
    listed = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(listed[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    write_text(path, text.getvalue())
    return path
