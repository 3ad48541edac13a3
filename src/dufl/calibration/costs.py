"""What collecting and holding data costs a client, fitted to a log of its costs.

A line of the log is one round: how many samples were collected, how many were held, and what that cost.

    cost = fixed + a·collected + α·collected² + b·held + β·held²        no part is negative

is fitted by non-negative least squares. The fixed part is left out unless it clearly helps: unless it lowers
BIC = n·log(RSS/n) + p·log n by more than 6, which counts as strong evidence.

The values for the game come from a fit with the quadratic parts, and with those linear parts that the log
speaks for: the ones with the lowest BIC, if it is lower than without linear parts by more than 6. Otherwise
the prices a and b are 0, and α and β absorb as much of the linear parts as they can. α must be positive in
the game, so a fit without it is not chosen if there is another.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w

from dufl.calibration.intervals import expanded_percentiles
from dufl.errors import InputError
from dufl.inputs import LARGEST

Array = npt.NDArray[np.float64]
Rows = Sequence[Sequence[float]] | npt.NDArray[Any]
Interval = tuple[float, float]

COLUMNS = ("collected", "held", "cost")
PARTS = ("collected", "collected²", "held", "held²")
QUADRATIC = ("collected²", "held²")
LINEAR = ((), ("collected",), ("held",), ("collected", "held"))  # parts that the game may have in addition
FIXED = "fixed"
LEAST = 8  # rows
STRONG = 6.0  # the difference in BIC that is strong evidence (Kass and Raftery, 1995)
DRAWS = 400
SEPARABLE = 1e-6  # smallest singular value of the scaled columns, relative to the largest


@dataclass(frozen=True)
class CostFit:
    """Prices by part, fitted to the log.

    Attributes:
        prices: by part: money per sample, or per squared sample; money per round for the fixed part.
        intervals: of every price, with a probability of 90 %, by resampling the rows of the log.
        r2: the share of the variance of the cost that the fit explains.
    """

    prices: dict[str, float]
    intervals: dict[str, Interval]
    r2: float

    def summary(self) -> dict[str, Any]:
        """The fit in plain numbers, ready for JSON."""
        return {
            "prices": dict(self.prices),
            "intervals": {part: list(interval) for part, interval in self.intervals.items()},
            "r2": self.r2,
        }


@dataclass(frozen=True, eq=False)
class ClientCosts:
    """What a log says about the costs of a client.

    Attributes:
        full: the fit with linear and quadratic parts.
        quadratic: the fit with quadratic parts.
        chosen: the fit with the parts that the log speaks for, which the game uses.
        rows: the log: collected, held and cost of every round, of shape (rounds, 3).
    """

    full: CostFit
    quadratic: CostFit
    chosen: CostFit
    rows: Array

    @property
    def collection_cost(self) -> float:
        """α for the game."""
        return self.chosen.prices["collected²"]

    @property
    def training_cost(self) -> float:
        """β for the game."""
        return self.chosen.prices["held²"]

    @property
    def collection_price(self) -> float:
        """The price a for the game; 0 without strong evidence."""
        return self.chosen.prices.get("collected", 0.0)

    @property
    def training_price(self) -> float:
        """The price b for the game; 0 without strong evidence."""
        return self.chosen.prices.get("held", 0.0)

    @property
    def columns(self) -> dict[str, float]:
        """The columns of the client in a table of clients or in `[clients]`; prices only if there are any."""
        prices = {"collection_price": self.collection_price, "training_price": self.training_price}
        quadratic = {"collection_cost": self.collection_cost, "training_cost": self.training_cost}
        return quadratic | {name: price for name, price in prices.items() if price > 0}

    @property
    def has_fixed_part(self) -> bool:
        """Whether a fixed cost per round clearly helps."""
        return FIXED in self.full.prices

    @property
    def ignored(self) -> str:
        """What the values for the game leave out, in a few sentences."""
        prices = self.full.prices
        missing = [
            f"{prices[part]:.4g} per {part} sample" for part in LINEAR[-1] if part not in self.chosen.prices
        ]
        told = []
        if missing:
            told.append(
                f"Linear prices of {' and '.join(missing)} are left out, because the log does not clearly "
                f"speak for them (R² {self.chosen.r2:.3f}; {self.full.r2:.3f} with all parts)."
            )
        if self.has_fixed_part:
            told.append(f"The game has no fixed costs: {prices[FIXED]:.4g} per round are ignored.")
        return " ".join(told)

    @property
    def usable(self) -> bool:
        """Whether the game accepts the values: α must be positive."""
        return self.collection_cost >= 1 / LARGEST

    def to_toml(self) -> str:
        """The section `[clients]` of a TOML file with the values for the game."""
        if not self.usable:
            advice = "no part of the cost grows with the square of what was collected"
            raise InputError.of("collection_cost", "> 0", self.collection_cost, advice=advice)
        return tomli_w.dumps({"clients": self.columns})

    def summary(self) -> dict[str, Any]:
        """The costs in plain numbers, ready for JSON."""
        return {
            "rows": len(self.rows),
            "collection_cost": self.collection_cost,
            "training_cost": self.training_cost,
            "collection_price": self.collection_price,
            "training_price": self.training_price,
            "fixed_part": self.has_fixed_part,
            "full": self.full.summary(),
            "quadratic": self.quadratic.summary(),
            "chosen": self.chosen.summary(),
            "ignored": self.ignored,
            "snippet": self.to_toml() if self.usable else None,
        }


def fit_costs(path_or_rows: str | Path | Rows, *, seed: int = 0) -> ClientCosts:
    """Fit a client's costs to a log.

    Args:
        path_or_rows: a CSV file with the columns `collected`, `held` and `cost` (others are not read), or
            rows of these three numbers.
        seed: of resampling the rows.

    >>> rows = [(c, h, 1e-3 * c**2 + 1e-5 * h**2) for c in (10, 20, 40) for h in (100, 300, 500)]
    >>> costs = fit_costs(rows)
    >>> round(costs.collection_cost, 9), round(costs.training_cost, 9)
    (0.001, 1e-05)
    """
    rows = checked_rows(path_or_rows)
    names = (FIXED, *PARTS) if _fixed_helps(rows) else PARTS
    kept = (*QUADRATIC, FIXED)
    quadratic, chosen = (
        tuple(name for name in names if name in kept or name in linear)
        for linear in ((), _linear(rows, names))
    )
    fits = {parts: _fit(rows, parts, seed) for parts in {names, quadratic, chosen}}
    return ClientCosts(fits[names], fits[quadratic], fits[chosen], rows)


def checked_rows(path_or_rows: str | Path | Rows) -> Array:
    """The rows of a log, checked; of shape (rounds, 3)."""
    if isinstance(path_or_rows, str | Path):
        path = Path(path_or_rows)
        where, lines, cells = f"{path} line ", *_read(path)
    else:
        where, cells = "row ", [list(row) for row in path_or_rows]
        lines = list(range(1, len(cells) + 1))
    for line, row in zip(lines, cells, strict=True):
        if len(row) != len(COLUMNS):
            raise InputError.of(f"{where}{line}", f"{', '.join(COLUMNS)}", f"{len(row)} cells")
    if len(cells) < LEAST:
        raise InputError.of("the log of costs", f"of at least {LEAST} rows", len(cells))
    rows = np.array(
        [
            [_number(f"{where}{line}: {name}", cell) for name, cell in zip(COLUMNS, row, strict=True)]
            for line, row in zip(lines, cells, strict=True)
        ]
    )
    _check_variety(rows)
    return rows


def _read(path: Path) -> tuple[list[int], list[list[Any]]]:
    """The numbers of the lines, and their cells in the order of `COLUMNS`."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        table = list(enumerate(csv.reader(text.splitlines()), start=1))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} must be a readable CSV file: {error}") from None
    table = [(line, row) for line, row in table if any(cell.strip() for cell in row)]
    header = [name.strip() for name in table[0][1]] if table else []
    for name in COLUMNS:
        if header.count(name) != 1:
            raise InputError.of(str(path), f"a table with one column {name}", ", ".join(header) or "none")
    for line, row in table[1:]:
        if len(row) != len(header):
            raise InputError.of(f"{path} line {line}", f"of {len(header)} cells", len(row))
    places = [header.index(name) for name in COLUMNS]
    return [line for line, _ in table[1:]], [[row[place] for place in places] for _, row in table[1:]]


def _number(field: str, cell: Any) -> float:
    text = cell.strip() if isinstance(cell, str) else cell
    if text is None or text == "":
        raise InputError.of(field, "given", None, text="a missing value")
    try:
        value = float(text)
    except (TypeError, ValueError, OverflowError):
        raise InputError.of(field, "a number", cell, text=f"{cell!r:.80}") from None
    if not np.isfinite(value):
        raise InputError.of(field, "a finite number", value)
    if value < 0:
        raise InputError.of(field, ">= 0", value)
    if value > LARGEST:
        raise InputError.of(field, f"{LARGEST:g} at most", value)
    return value


def _check_variety(rows: Array) -> None:
    """Prices can be told apart only if collected and held vary, and not together."""
    for name, column in zip(COLUMNS, rows.T, strict=True):
        if np.ptp(column) == 0:
            raise InputError.of(f"column {name}", "different from round to round", f"only {column[0]:g}")
    if _singular(_matrix(rows, PARTS)):
        rule = "varied independently of each other, with at least two positive values each"
        raise InputError.of("columns collected and held", rule, "too few or proportional values")


def _matrix(rows: Array, names: Sequence[str]) -> Array:
    collected, held = rows[:, 0], rows[:, 1]
    parts = {
        FIXED: np.ones(len(rows)),
        "collected": collected,
        "collected²": collected**2,
        "held": held,
        "held²": held**2,
    }
    return np.column_stack([parts[name] for name in names])


def _singular(matrix: Array) -> bool:
    """Whether some column is a combination of the others; no matter in which units columns are."""
    values = np.linalg.svd(matrix / np.linalg.norm(matrix, axis=0), compute_uv=False)
    return bool(values[-1] < SEPARABLE * values[0])


def _solve(matrix: Array, cost: Array) -> Array:
    """The non-negative least squares solution, with columns and costs scaled to magnitude one."""
    from scipy.optimize import nnls

    scale = np.maximum(matrix.max(axis=0), 1e-300)
    money = max(float(cost.max()), 1e-300)
    return np.asarray(nnls(matrix / scale, cost / money)[0] * money / scale)


def _fixed_helps(rows: Array) -> bool:
    """Whether a fixed part lowers BIC by more than `STRONG`."""
    with_fixed = _matrix(rows, (FIXED, *PARTS))
    if _singular(with_fixed):
        return False
    evidence = _information(rows, PARTS) - _information(rows, (FIXED, *PARTS))
    return bool(evidence > STRONG)


def _linear(rows: Array, names: Sequence[str]) -> tuple[str, ...]:
    """The linear parts that lower BIC most, if they lower it by more than `STRONG`; those in which α > 0."""
    found: list[tuple[float, tuple[str, ...]]] = []
    for linear in LINEAR:
        parts = tuple(name for name in names if name in (*QUADRATIC, FIXED, *linear))
        prices = dict(zip(parts, _solve(_matrix(rows, parts), rows[:, 2]), strict=True))
        doubt = STRONG if linear else 0.0
        if not linear or prices["collected²"] >= 1 / LARGEST:
            found.append((_information(rows, parts) + doubt, linear))
    return min(found)[1]


def _information(rows: Array, names: Sequence[str]) -> float:
    """BIC of the fit with some parts, up to a constant."""
    matrix, cost, count = _matrix(rows, names), rows[:, 2], len(rows)
    least = 1e-20 * float(np.sum(cost**2))  # rounding: a fit is never better than this
    left = max(float(np.sum((cost - matrix @ _solve(matrix, cost)) ** 2)), least)
    return float(count * np.log(left) + len(names) * np.log(count))


def _fit(rows: Array, names: tuple[str, ...], seed: int) -> CostFit:
    matrix, cost = _matrix(rows, names), rows[:, 2]
    prices = _solve(matrix, cost)
    left = float(np.sum((cost - matrix @ prices) ** 2))
    r2 = 1 - left / float(np.sum((cost - cost.mean()) ** 2))
    generator = np.random.default_rng([seed, 12])
    drawn = []
    for _ in range(DRAWS):
        which = generator.integers(len(rows), size=len(rows))
        drawn.append(_solve(matrix[which], cost[which]))
    low, high = expanded_percentiles(np.array(drawn), len(rows), len(names))
    return CostFit(
        dict(zip(names, prices.tolist(), strict=True)),
        dict(zip(names, zip(low.tolist(), high.tolist(), strict=True), strict=True)),
        r2,
    )
