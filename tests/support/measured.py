"""A loss law as a calibration returns it, and a calibration without trainings."""

import numpy as np

from dufl.calibration.calibrate import Calibration
from dufl.calibration.fit import FORMS, Fit
from dufl.calibration.measurements import Measurement, Metric
from dufl.game.loss import PowerLaw

DEVIATIONS = (0.01, 0.02, 0.01, 0.005, 0.2, 0.0, 0.0)


def measured_law() -> PowerLaw:
    """A law of the error with its uncertainty."""
    covariance = tuple(tuple(row) for row in np.diag(np.square(DEVIATIONS)).tolist())
    return PowerLaw(
        floor=0.17,
        volume_weight=0.5,
        volume_exponent=0.45,
        staleness_weight=0.03,
        staleness_exponent=1.6,
        covariance=covariance,
        noise=0.003,
        measured_from=0.6,
    )


def measurements(count: int = 20, noise: float = 0.004, seed: int = 0) -> list[Measurement]:
    """Measurements around the law."""
    generator, law, made = np.random.default_rng(seed), measured_law(), []
    for place in range(count):
        volume, rate = float(generator.choice([8, 20, 50, 120, 300])), float(generator.uniform(0, 0.96))
        staleness = min(1 / (1 - rate), 20.0)
        value = float(law(1 / volume, staleness)) + float(generator.normal(0, noise))
        made.append(Measurement(volume / 3, rate, place % 4, 1 / volume, staleness, value, value))
    return made


def calibration(unit: Metric = "error", count: int = 20) -> Calibration:
    """A calibration of such measurements, whose law is the true one: a fit would take a minute."""
    measured, law = measurements(count), measured_law().replace(unit=unit)
    fit = Fit(FORMS[4], law, rmse=0.004, heldout_rmse=0.006, heldout_mae=0.005, r2=0.99, heldout_r2=0.98)
    return Calibration(law, fit, (fit,), tuple(measured))


def constant_calibration() -> Calibration:
    """A calibration in which nothing matters."""
    measured = [Measurement(1.0 + n, 0.5, n, 0.01 * (1 + n), 2.0 + n, 0.3, 0.3) for n in range(6)]
    fit = Fit(FORMS[0], PowerLaw(floor=0.3), 0.0, 0.0, 0.0, float("nan"), float("nan"))
    return Calibration(fit.law, fit, (fit,), tuple(measured))
