"""Laws of fitting costs: known prices are found, units do not matter, a log that says nothing is refused."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dufl.calibration.costs import FIXED, PARTS, QUADRATIC, ClientCosts, fit_costs
from dufl.errors import InputError
from dufl.experiment.config import Experiment

PRICES = {"collected": 0.02, "collected²": 5e-4, "held": 1e-3, "held²": 2e-5}


def log(
    rows: int = 60, noise: float = 0.3, seed: int = 0, fixed: float = 0.0, prices: dict[str, float] = PRICES
) -> npt.NDArray[Any]:
    """A log with known prices and Gaussian errors."""
    generator = np.random.default_rng(seed)
    collected, held = generator.uniform(5, 120, rows), generator.uniform(50, 900, rows)
    parts = np.stack([collected, collected**2, held, held**2])
    cost = (
        fixed + np.array([prices[part] for part in PARTS]) @ parts + noise * generator.standard_normal(rows)
    )
    return np.column_stack([collected, held, np.maximum(cost, 0)])


def covered(costs: ClientCosts, part: str, price: float) -> bool:
    low, high = costs.full.intervals[part]
    return low <= price <= high


def test_known_prices_are_inside_their_intervals() -> None:
    found = [fit_costs(log(seed=seed)) for seed in range(100)]
    for part in PARTS:
        assert sum(covered(costs, part, PRICES[part]) for costs in found) >= 85, part
        assert sum(covered(costs, part, 1.5 * PRICES[part]) for costs in found) < 95, part  # it can fail
    assert sum(costs.has_fixed_part for costs in found) <= 5


def test_prices_are_exact_without_errors() -> None:
    costs = fit_costs(log(noise=0.0, fixed=3.0))
    assert costs.full.prices == pytest.approx({FIXED: 3.0, **PRICES}, rel=1e-6)
    assert costs.full.r2 == pytest.approx(1.0)
    assert fit_costs(log(noise=0.0)).full.prices == pytest.approx(PRICES, rel=1e-6)


def test_a_clear_fixed_part_is_found() -> None:
    costs = fit_costs(log(fixed=20.0))
    low, high = costs.full.intervals[FIXED]
    assert costs.has_fixed_part
    assert low <= 20.0 <= high
    assert FIXED in costs.quadratic.prices


@pytest.mark.parametrize("fixed", [0.0, 20.0])
def test_the_unit_of_money_does_not_matter(fixed: float) -> None:
    euros = log(fixed=fixed)
    cents = euros * [1, 1, 100]
    one, hundred = fit_costs(euros), fit_costs(cents)
    assert hundred.collection_cost == pytest.approx(100 * one.collection_cost)
    assert hundred.training_cost == pytest.approx(100 * one.training_cost)
    assert hundred.full.r2 == pytest.approx(one.full.r2)
    for part, (low, high) in one.full.intervals.items():
        assert hundred.full.intervals[part] == pytest.approx((100 * low, 100 * high))


def test_the_quadratic_fit_is_the_best_with_two_parts() -> None:
    rows = log()
    costs = fit_costs(rows)
    squares, cost = rows[:, :2] ** 2, rows[:, 2]
    by_hand = np.linalg.lstsq(squares, cost, rcond=None)[0]
    assert [costs.quadratic.prices[part] for part in QUADRATIC] == pytest.approx(by_hand.tolist())
    assert costs.quadratic.r2 <= costs.chosen.r2 <= costs.full.r2


def test_known_costs_are_recovered_from_noisy_logs() -> None:
    """Within 10 % in the median log, all four; the linear parts are seen in nearly all logs."""
    clear = PRICES | {"held": 5e-3}
    found = [fit_costs(log(rows=200, seed=seed, prices=clear)) for seed in range(40)]
    for name, part in (
        ("collection_cost", "collected²"),
        ("training_cost", "held²"),
        ("collection_price", "collected"),
        ("training_price", "held"),
    ):
        errors = [abs(getattr(costs, name) / clear[part] - 1) for costs in found]
        assert np.median(errors) < 0.1, name
    assert sum(costs.collection_price > 0 and costs.training_price > 0 for costs in found) >= 36


def test_quadratic_costs_have_no_prices() -> None:
    """Most logs of quadratic costs give the fit with quadratic parts, and nothing else."""
    quadratic = PRICES | {"collected": 0.0, "held": 0.0}
    found = [fit_costs(log(seed=seed, prices=quadratic)) for seed in range(100)]
    plain = [costs for costs in found if costs.collection_price == costs.training_price == 0]
    assert len(plain) >= 95
    for costs in plain:
        assert costs.chosen == costs.quadratic
        assert list(tomllib.loads(costs.to_toml())["clients"]) == ["collection_cost", "training_cost"]


def test_costs_without_a_square_keep_the_best_square() -> None:
    """The game needs α > 0: a log of linear costs gives the nearest quadratic ones, as a client can use."""
    costs = fit_costs(log(noise=0.0, prices=dict(PRICES, **{"collected²": 0.0, "held²": 0.0})))
    assert costs.usable
    assert costs.collection_cost > 0


def test_no_price_is_negative() -> None:
    generator = np.random.default_rng(0)
    rows = np.column_stack([generator.uniform(1, 9, (30, 2)), generator.uniform(0, 1, 30)])
    costs = fit_costs(rows)
    assert min(costs.full.prices.values()) >= 0
    assert min(low for low, _ in costs.full.intervals.values()) >= 0


def test_the_result_is_json_and_a_section_that_an_experiment_accepts(tmp_path: Path) -> None:
    costs = fit_costs(log())
    summary = json.loads(json.dumps(costs.summary()))
    (tmp_path / "dufl.toml").write_text(summary["snippet"])
    clients = Experiment.from_toml(tmp_path / "dufl.toml").game.clients
    assert clients.collection_cost.tolist() == pytest.approx([costs.collection_cost] * clients.size)
    assert clients.training_price.tolist() == pytest.approx([costs.training_price] * clients.size)
    assert tomllib.loads(costs.to_toml())["clients"] == costs.columns
    assert summary["collection_price"] == costs.collection_price > 0
    assert summary["fixed_part"] is False


def test_costs_that_do_not_grow_with_the_collected_samples_are_not_for_the_game() -> None:
    rows = log(noise=0.0)
    rows[:, 2] = 1e-5 * rows[:, 1] ** 2 + np.maximum(0, 100 - rows[:, 0])
    costs = fit_costs(rows)
    assert costs.collection_cost == 0
    assert costs.summary()["snippet"] is None
    with pytest.raises(InputError) as refused:
        costs.to_toml()
    assert refused.value.field == "collection_cost"


def write(path: Path, rows: npt.NDArray[Any], header: str = "collected,held,cost") -> Path:
    path.write_text("\n".join([header, *(",".join(map(repr, row)) for row in rows.tolist())]) + "\n")
    return path


def test_a_file_gives_the_same_as_its_rows(tmp_path: Path) -> None:
    rows = log(rows=20)
    wide = np.column_stack([rows[:, 2], np.arange(20), rows[:, :2]])  # other columns, another order
    path = write(tmp_path / "log.csv", wide, "cost,round,collected,held")
    assert fit_costs(str(path)).summary() == fit_costs(rows).summary() == fit_costs(rows.tolist()).summary()


@pytest.mark.parametrize(
    ("row", "column", "value", "field", "rule"),
    [
        (0, 0, -1.0, "row 1: collected", ">= 0"),
        (3, 1, np.nan, "row 4: held", "a finite number"),
        (2, 2, np.inf, "row 3: cost", "a finite number"),
        (2, 2, None, "row 3: cost", "given"),
        (2, 0, "many", "row 3: collected", "a number"),
        (2, 0, 1e60, "row 3: collected", "1e+50 at most"),
    ],
)
def test_an_invalid_cell_is_named(row: int, column: int, value: Any, field: str, rule: str) -> None:
    rows = log(rows=10).tolist()
    rows[row][column] = value
    with pytest.raises(InputError) as refused:
        fit_costs(rows)
    assert (refused.value.field, refused.value.rule) == (field, rule)


def test_a_log_that_says_too_little_is_refused() -> None:
    rows = log(rows=20)
    constant, proportional, few = rows.copy(), rows.copy(), rows[:7]
    constant[:, 1] = 5.0
    proportional[:, 1] = 3 * proportional[:, 0]
    for bad, field in (
        (constant, "column held"),
        (proportional, "columns collected and held"),
        (few, "the log of costs"),
        (rows[:, :2], "row 1"),
    ):
        with pytest.raises(InputError) as refused:
            fit_costs(bad)
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("collected,held\n1,2\n", "log.csv"),
        ("collected,held,cost\n1,,3\n" + "1,2,3\n" * 9, "log.csv line 2: held"),
        ("collected,held,cost\n\n1,2,3\n1,2\n", "log.csv line 4"),
        ("", "log.csv"),
    ],
)
def test_an_invalid_file_is_named_with_its_line(
    text: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(text)
    with pytest.raises(InputError) as refused:
        fit_costs("log.csv")
    assert refused.value.field == field


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        fit_costs(tmp_path / "none.csv")
