"""Intervals of parameters that were fitted to resampled measurements."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
LEVEL = 0.90  # the probability that an interval covers the parameter


def expanded_percentiles(
    drawn: Array, count: int, parameters: int, level: float = LEVEL
) -> tuple[Array, Array]:
    """The lower and upper ends of the intervals of resampled parameters.

    Plain percentiles are too narrow for few measurements. The expanded ones (Hesterberg, 2015) are as wide as
    Student's t with n − p degrees of freedom would be: tail = Φ(−√(n/(n − p))·t).

    Args:
        drawn: of shape (draws, parameters).
        count: n, the number of measurements, or of groups of them, that were resampled.
        parameters: p, of the fit.
        level: the probability that an interval covers the parameter.
    """
    from scipy.special import ndtr, stdtrit

    freedom = max(count - parameters, 1)
    tail = float(ndtr(np.sqrt(count / freedom) * stdtrit(freedom, (1 - level) / 2)))
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return low, high
