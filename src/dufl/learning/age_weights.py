"""Sample weights by age: old samples count less in local training.

    none          w(a) = 1
    linear        w(a) = max(1 − (a − 1)/H, 0)      I. Koychev, *Gradual Forgetting for Adaptation to Concept
                                                    Drift* (ECAI 2000 Workshop on Current Issues in
                                                    Spatio-Temporal Reasoning)
    exponential   w(a) = 2^(−(a − 1)/H)             R. Klinkenberg, *Learning Drifting Concepts: Example
                                                    Selection vs. Example Weighting* (Intelligent Data
                                                    Analysis 8, 2004)

for a sample of age a and the scale H in rounds: the age at which a sample counts nothing is H + 1, or H is
the half-life. A client's loss is the weighted mean of its D samples, with weights of mean 1, so that the size
of a step does not change:

    F(w) = 1/D·Σ_i w_i·ℓ_i(w),    Σ_i w_i = D,    and Σ_{i ∈ B} w_i·ℓ_i / |B| for a batch B.

If all weights are 0, all samples count equally.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

AgeWeighting = Literal["none", "linear", "exponential"]


def age_weights(
    ages: npt.NDArray[np.int64], weighting: AgeWeighting, scale: float
) -> npt.NDArray[np.float32] | None:
    """One weight per sample, with mean 1; None if all samples count equally by definition.

    >>> age_weights(np.array([1, 3, 5]), "exponential", 2.0)
    array([1.7142857 , 0.85714287, 0.42857143], dtype=float32)
    >>> age_weights(np.array([1, 3, 5]), "linear", 4.0), age_weights(np.array([9, 9]), "linear", 4.0)
    (array([2., 1., 0.], dtype=float32), array([1., 1.], dtype=float32))
    """
    if weighting == "none" or not len(ages):
        return None
    if weighting == "linear":
        weights = np.maximum(1 - (ages - 1) / scale, 0)
    else:  # relative to the youngest, which changes no weight of mean 1 and is never rounded to 0
        weights = np.exp2(-(ages - ages.min()) / scale)
    mean = weights.mean()
    return (weights / mean if mean else np.ones(len(ages))).astype(np.float32)
