"""A loss law that is updated with what a run has measured."""

import numpy as np
import pytest

from dufl import PowerLaw
from dufl.game.loss import PARAMETERS
from dufl.game.update import Observation, updated

LAW = PowerLaw(
    floor=0.1,
    volume_weight=0.3,
    volume_exponent=0.4,
    staleness_weight=0.03,
    staleness_exponent=1.5,
    noise=0.004,
)


def seen(value: float, scarcity: float = 0.02, staleness: float = 4.0) -> Observation:
    """A block of three rounds at one point."""
    return Observation(np.full(3, scarcity), np.full(3, staleness), value)


def with_covariance(deviations: dict[str, float], noise: float = 0.004) -> PowerLaw:
    """The law whose parameters are known to these standard deviations."""
    matrix = np.diag([deviations.get(name, 0.0) ** 2 for name in PARAMETERS])
    return LAW.replace(covariance=tuple(map(tuple, matrix.tolist())), noise=noise)


def at(law: PowerLaw, observation: Observation) -> float:
    """What a law says about a block."""
    return float(np.mean(law(observation.scarcity, observation.staleness)))


def test_without_measurements_a_law_stays_the_same_object() -> None:
    """Not even its covariance changes."""
    assert updated(LAW, []) is LAW


@pytest.mark.parametrize("covariance", [None, "zero"])
def test_a_law_that_is_known_moves_its_floor_alone(covariance: str | None) -> None:
    """The floor takes what the run has of its own; slopes are what the calibration says."""
    law = LAW if covariance is None else with_covariance({})
    new = updated(law, [seen(0.3)])
    assert new.floor > law.floor
    assert new.parameters[1:].tolist() == law.parameters[1:].tolist()


def test_a_law_without_any_uncertainty_does_not_move() -> None:
    """Neither its covariance nor its noise allows it."""
    for law in (LAW.replace(noise=0.0), with_covariance({}, noise=0.0)):
        assert updated(law, [seen(0.3), seen(0.4)]).parameters.tolist() == law.parameters.tolist()


def test_many_measurements_pull_the_prediction_to_what_was_measured() -> None:
    """And their number makes it more certain."""
    law, block = with_covariance({"floor": 0.01, "volume_weight": 0.02, "staleness_weight": 0.01}), seen(0.25)
    gaps, spreads = [], []
    for count in (1, 4, 64):
        new = updated(law, [block] * count)
        gaps.append(abs(at(new, block) - block.value))
        spreads.append(new.deviation(block.scarcity, block.staleness))
    before = abs(at(law, block) - block.value)
    assert before > gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.01 * before
    assert spreads[0] > spreads[1] > spreads[2]


def test_a_measurement_as_predicted_moves_nothing() -> None:
    """It makes the law more certain."""
    law = with_covariance({"floor": 0.01, "volume_weight": 0.02})
    block = seen(at(law, seen(0.0)))
    new = updated(law, [block])
    np.testing.assert_allclose(new.parameters, law.parameters, rtol=0, atol=1e-15)
    assert np.trace(np.array(new.covariance)) < np.trace(np.array(law.covariance)) + law.noise**2


def test_the_update_is_generalized_least_squares() -> None:
    """One measurement after the other is the closed form with all of them at once."""
    law = with_covariance({"floor": 0.01, "volume_weight": 0.02, "volume_exponent": 0.02})
    blocks = [seen(0.21), seen(0.2, scarcity=0.05), seen(0.18, staleness=9.0)]
    rows = np.array([law.gradient(b.scarcity, b.staleness).mean(axis=1) for b in blocks])
    missed = np.array([b.value - at(law, b) for b in blocks])
    prior = np.array(law.covariance)
    prior[0, 0] += law.noise**2
    gain = prior @ rows.T @ np.linalg.inv(rows @ prior @ rows.T + law.noise**2 * np.eye(3))
    new = updated(law, blocks)
    np.testing.assert_allclose(new.parameters, law.parameters + gain @ missed, rtol=1e-10)
    np.testing.assert_allclose(np.array(new.covariance), prior - gain @ rows @ prior, atol=1e-15)


def test_at_one_point_mostly_the_floor_moves() -> None:
    """A run cannot tell the parameters apart, and the law is known better than one run is."""
    law = with_covariance({"floor": 0.001, "volume_weight": 0.002, "staleness_weight": 0.0005})
    block = seen(0.2)
    new = updated(law, [block] * 4)
    assert abs(new.floor - law.floor) > 0.8 * abs(at(new, block) - at(law, block))


@pytest.mark.parametrize("value", [-50.0, 0.0, 50.0])
def test_parameters_keep_their_bounds(value: float) -> None:
    """Whatever is measured, the result is a law; what a bound keeps away, the others take."""
    wide = {name: 5.0 for name in PARAMETERS if not name.startswith("flow")} | {"floor": 0.001}
    law = with_covariance(wide)
    new = updated(law, [seen(value)] * 10)
    assert (new.parameters[1::2] >= 0).all()
    assert (new.parameters[2::2] > 0).all()
    assert (new.flow_weight, new.flow_exponent) == (law.flow_weight, law.flow_exponent)


def test_exact_measurements_are_met_once() -> None:
    """Without noise a second measurement at the same point says nothing new."""
    law = with_covariance({"floor": 0.01}, noise=0.0)
    new = updated(law, [seen(0.25), seen(0.35)])
    assert at(new, seen(0.0)) == pytest.approx(0.25)
