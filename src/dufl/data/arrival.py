"""Which classes can be collected in a round: some from the start, the others arrive later, governed by σ.

    first(σ) = ⌈C·(1 − σ/3)⌉                               of C classes, before round 0
    count(t) = first + ⌊(C − first) · min(t/(until·T), 1)⌋   in round t

Classes arrive in label order and at the same time for every client by default. With σ = 0 all classes are
there from the start.
"""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from dufl.errors import InputError
from dufl.inputs import Count, Inputs, NonNegative, Share


class Arrival(Inputs):
    """The schedule of classes.

    Attributes:
        num_classes: C.
        time_sensitivity: σ.
        num_rounds: T.
        until: the fraction of the rounds after which every class has arrived.
        initial: the number of classes at the start, instead of ⌈C·(1 − σ/3)⌉.
        order: `label`; `client`, a random order for each client; or a list of all classes.
    """

    num_classes: Count
    time_sensitivity: NonNegative = 0.75
    num_rounds: Count = 100
    until: Share = 0.5
    initial: Count | None = None
    order: Literal["label", "client"] | list[int] = "label"

    def model_post_init(self, _: object) -> None:
        """Check `order` and `initial` against the number of classes."""
        if isinstance(self.order, list) and sorted(self.order) != list(range(self.num_classes)):
            raise InputError.of("order", f"every class from 0 to {self.num_classes - 1} once", self.order)
        if self.initial is not None and self.initial > self.num_classes:
            raise InputError.of("initial", f"<= num_classes = {self.num_classes}", self.initial)

    def count(self, round: int) -> int:
        """The number of classes in a round.

        >>> [Arrival(num_classes=10, time_sensitivity=1.25).count(t) for t in (0, 12, 13, 25, 49, 50, 99)]
        [6, 6, 7, 8, 9, 10, 10]
        """
        first = self._first()
        last = self.until * self.num_rounds
        arrived = 1.0 if last == 0 else min(max(round, 0) / last, 1.0)
        return first + math.floor((self.num_classes - first) * arrived + 1e-9)

    def classes(self, round: int, seed: int = 0, client: int = 0) -> npt.NDArray[np.int64]:
        """The sorted classes that a client can collect in a round."""
        if self.order == "client":
            order = np.random.default_rng([seed, client, 0, 3]).permutation(self.num_classes)
        elif self.order == "label":
            order = np.arange(self.num_classes)
        else:
            order = np.array(self.order)
        return np.sort(order[: self.count(round)])

    def _first(self) -> int:
        if self.initial is not None:
            return self.initial
        share = 1 - self.time_sensitivity / 3
        return min(max(math.ceil(self.num_classes * share - 1e-9), 1), self.num_classes)
