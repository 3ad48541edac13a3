"""Calibration: known laws are recovered, the verdict is honest, pilots are resumed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dufl
from dufl.calibration.calibrate import PILOTS, Calibration, calibrate
from dufl.calibration.fit import Fit, choose_memory, fit_laws
from dufl.calibration.measurements import SIMULATED, Measurement
from dufl.calibration.pilots import Pilot, informative, promising
from dufl.game.loss import PowerLaw, scarcity_of

TRUE = PowerLaw(
    floor=0.12, volume_weight=0.33, volume_exponent=0.3, staleness_weight=0.02, staleness_exponent=1.5
)


@pytest.fixture(scope="module")
def tried() -> list[Pilot]:
    """The pilots of the default game, with what they lead to."""
    return informative(dufl.Game(), PILOTS, SIMULATED)


def synthetic(tried: list[Pilot], value: Any, noise: float, seed: int) -> list[Measurement]:
    """Trainings that follow a known function of scarcity and staleness."""
    generator = np.random.default_rng(seed)
    return [
        Measurement(
            c.offer.payment,
            c.offer.conservation_rate,
            i % 4,
            c.scarcity,
            c.staleness,
            float(value(c.scarcity, c.staleness)) + noise * generator.standard_normal(),
            0.0,
        )
        for i, c in enumerate(tried)
    ]


def calibration_of(measurements: list[Measurement]) -> Calibration:
    fit, every = fit_laws(measurements)
    return Calibration(fit.law, fit, tuple(every), tuple(measurements))


def covered(fit: Fit, law: PowerLaw) -> bool:
    """Whether the exponents of the law are in their intervals."""
    names = ("volume_exponent", "staleness_exponent")
    return all(
        name in fit.intervals and fit.intervals[name][0] <= getattr(law, name) <= fit.intervals[name][1]
        for name in names
    )


def test_pilots_are_spread_over_volumes_and_ages(tried: list[Pilot]) -> None:
    ages, volumes = [c.staleness for c in tried], [1 / c.scarcity for c in tried]
    assert max(ages) / min(ages) > 20
    assert max(volumes) / min(volumes) > 5
    assert len({(c.offer, c.steady) for c in tried}) >= 20
    assert sum(c.steady for c in tried) == len(tried) / 2


def test_what_the_model_remembers_is_found() -> None:
    """Two thirds of the way between an early and a late volume, by a memory of half of the rounds."""
    game, made = dufl.Game(num_rounds=60), []
    true = TRUE.replace(memory=30.0)
    generator = np.random.default_rng(5)
    for pilot in informative(game, 24, 0.8):
        total = dufl.equilibrium(
            pilot.game(game), payment=pilot.offer.payment, conservation_rate=pilot.offer.conservation_rate
        ).total_volume
        laws = [TRUE.replace(memory=m) for m in (0.0, 6.0, 30.0, 60.0)]
        by_memory = {law.memory: float(scarcity_of(law, 15, total)[48:].mean()) for law in laws}
        value = float(true(by_memory[30.0], pilot.staleness)) + 0.001 * generator.standard_normal()
        offer = pilot.offer
        made.append(
            Measurement(
                offer.payment,
                offer.conservation_rate,
                0,
                by_memory[0.0],
                pilot.staleness,
                value,
                0,
                remembered=by_memory,
            )
        )
    assert fit_laws(made)[0].law.memory == 30.0
    forgetful = [replace(m, value=float(TRUE(m.scarcity, m.staleness))) for m in made]
    assert choose_memory(forgetful) == 0.0


def test_a_known_law_is_found(tried: list[Pilot]) -> None:
    fit, _ = fit_laws(synthetic(tried, TRUE, 0.002, seed=0))
    assert fit.form.name == "volume and staleness"
    assert fit.heldout_r2 > 0.97
    assert covered(fit, TRUE)
    assert fit.law.volume_exponent == pytest.approx(0.3, abs=0.1)
    for c in tried:
        assert fit.law(c.scarcity, c.staleness) == pytest.approx(TRUE(c.scarcity, c.staleness), abs=0.006)
        assert fit.law.deviation(c.scarcity, c.staleness) < 0.01


def followed(spread: list[Pilot], law: PowerLaw, noise: float, seed: int) -> list[Pilot]:
    """The pilots of a calibration whose trainings follow a law: first spread, then where a fit would plan."""
    so_far = calibration_of(synthetic(spread, law, noise, seed)).calibrated().game
    paid = [pilot.offer.payment for pilot in spread]
    return spread + promising(so_far, PILOTS - len(spread), SIMULATED, paid)


def test_later_pilots_are_offers_that_the_law_so_far_would_make(tried: list[Pilot]) -> None:
    """With a law that age does not enter, the oldest data that was tried; otherwise fresher data."""
    spread = tried[:16]
    kept = {
        weight: followed(spread, TRUE.replace(staleness_weight=weight), 0.001, seed=0)[16:]
        for weight in (0.0, 0.3)
    }
    assert all(len(pilots) == 8 and sum(p.steady for p in pilots) == 4 for pilots in kept.values())
    oldest = max(p.offer.conservation_rate for p in spread)
    assert all(p.offer.conservation_rate == pytest.approx(oldest, abs=0.02) for p in kept[0.0])
    assert all(p.offer.conservation_rate < 0.9 for p in kept[0.3])
    payments = [p.offer.payment for p in kept[0.3]]
    assert min(p.offer.payment for p in spread) < min(payments) < max(payments) / 10


@pytest.mark.slow
def test_a_known_law_is_recovered_in_its_interval_in_ninety_of_a_hundred(tried: list[Pilot]) -> None:
    spread = tried[:16]
    found = 0
    for seed in range(100):
        pilots = followed(spread, TRUE, 0.002, seed)
        found += covered(fit_laws(synthetic(pilots, TRUE, 0.002, seed))[0], TRUE)
    assert found >= 90


def test_the_verdict_when_age_does_not_matter(tried: list[Pilot]) -> None:
    law = PowerLaw(floor=0.1, volume_weight=0.5, volume_exponent=0.4)
    found = calibration_of(synthetic(tried, law, 0.002, seed=1))
    assert "Age does not matter here: keep everything and pay little" in found.verdict
    assert found.trusted


def test_the_verdict_when_age_decides(tried: list[Pilot]) -> None:
    law = PowerLaw(floor=0.3, volume_weight=0.05, volume_exponent=0.5, staleness_weight=0.15)
    found = calibration_of(synthetic(tried, law, 0.002, seed=2))
    assert "keep little" in found.verdict


def test_what_no_form_describes_is_not_to_be_trusted(tried: list[Pilot]) -> None:
    """Recurring drift: data of the last season is useless, and that of the season before is not."""
    found = calibration_of(
        synthetic(tried, lambda x, s: 0.3 + 0.15 * np.sin(1.3 * s + 40 * x), 0.002, seed=3)
    )
    assert not found.trusted
    assert "do not plan with it" in found.verdict


def test_pilots_are_trained_once_and_their_law_is_planned_with(tmp_path: Path) -> None:
    game = dufl.Game(clients=dufl.Clients.draw(4, initial_volume=200.0), num_rounds=20)
    experiment = dufl.Experiment(game=game, training=dufl.Training(local_epochs=1, learning_rate=0.1))
    first = calibrate(experiment, pilots=8, out=tmp_path / "pilots")
    assert first is not None
    rounds: list[int] = []
    again = calibrate(
        experiment,
        pilots=8,
        out=tmp_path / "pilots",
        on_pilot=lambda _i, _o, record: rounds.append(record.round),
    )
    assert again is not None
    assert again.law == first.law
    calibrated = first.calibrated()
    assert calibrated.game.conservation_range[1] == max(m.conservation_rate for m in first.measurements)
    plan = dufl.solve(calibrated.game, budget=100.0)
    assert plan.prediction is not None
    assert 0 < plan.prediction.accuracy < 1


def test_a_callback_stops_the_pilots() -> None:
    game = dufl.Game(clients=dufl.Clients.draw(4, initial_volume=200.0), num_rounds=10)
    experiment = dufl.Experiment(game=game, training=dufl.Training(local_epochs=1))
    assert calibrate(experiment, pilots=8, callbacks=[lambda _: dufl.Action.PAUSE]) is None


def test_a_few_trainings_that_no_form_describes_do_not_hide_a_term(tried: list[Pilot]) -> None:
    """Two trainings far off the law; the volume, whose term is small, is still found in the others."""
    law = PowerLaw(
        floor=0.2, volume_weight=0.3, volume_exponent=0.4, staleness_weight=0.12, staleness_exponent=1.5
    )
    made = synthetic(tried, law, 0.002, seed=4)
    odd = np.random.default_rng(4).choice(len(made), 2, replace=False)
    for shift in (-0.1, 0.1):
        moved = [replace(m, value=m.value + shift) if i in odd else m for i, m in enumerate(made)]
        assert fit_laws(moved)[0].form.name == "volume and staleness"
