"""What the update of each client brings, in one round.

A client is paid for a number of samples that nobody can see. What the server can see is its update
d_k = w_k − w, next to the updates of the others. With p_k = n_k/Σ_j n_j and the mean update m = Σ_j p_j·d_j:

    influence   c_k = [L(w + m − p_k·d_k) − L(w + m + p_k·d_k)] / (2·p_k·‖d_k‖)
                by how much the loss L on the server's own samples falls if the client counts for more, per
                length of its update
    direction   the cosine of d_k and Σ_{j≠k} p_j·d_j

To leave a client out and rescale the others is to compare it with their mean, so that half of all honest
clients lose. The influence does not rescale: who returns the model unchanged has an influence of 0.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
Arrays = Mapping[str, AnyArray]
Loss = Callable[[int, Arrays], float]


@dataclass(frozen=True, eq=False)
class Updates:
    """The updates of a round.

    Attributes:
        round: t, from 0.
        model: the arrays that were sent out, by name.
        returned: the arrays that each client returned.
        volumes: the number of samples that each of them trained on, at least 1.
    """

    round: int
    model: Arrays
    returned: Mapping[int, Arrays]
    volumes: Mapping[int, int]

    @cached_property
    def shares(self) -> dict[int, float]:
        """p_k."""
        total = sum(self.volumes[client] for client in self.returned)
        return {client: self.volumes[client] / total for client in self.returned}

    def change(self, client: int) -> dict[str, AnyArray]:
        """d_k by the name of the array, in double precision; statistics of batches do not count."""
        return {
            name: np.asarray(self.returned[client][name], np.float64) - np.asarray(before, np.float64)
            for name, before in self.model.items()
            if before.dtype.kind == "f" and name != "model_buffers" and ".running_" not in f".{name}"
        }

    @cached_property
    def mean(self) -> dict[str, AnyArray]:
        """m, by the name of the array."""
        mean: dict[str, AnyArray] = {}
        for client, share in self.shares.items():
            for name, change in self.change(client).items():
                mean[name] = mean[name] + share * change if name in mean else share * change
        return mean

    @cached_property
    def sizes(self) -> dict[int, float]:
        """‖d_k‖."""
        return {
            client: math.sqrt(_product(change := self.change(client), change)) for client in self.returned
        }

    def directions(self) -> dict[int, float]:
        """The direction of every client; 0 if an update is."""
        whole, cosines = _product(self.mean, self.mean), {}
        for client, share in self.shares.items():
            along, size = _product(self.change(client), self.mean), self.sizes[client]
            others = math.sqrt(max(whole - 2 * share * along + (share * size) ** 2, 0.0))
            cosines[client] = (along - share * size**2) / (size * others) if size * others > 0 else 0.0
        return cosines

    def influence(self, client: int, loss: Loss) -> float:
        """The influence of a client."""
        length = self.shares[client] * self.sizes[client]
        if length == 0:
            return 0.0
        less, more = (loss(self.round, self._moved(client, sign)) for sign in (-1.0, 1.0))
        return (less - more) / (2 * length)

    def _moved(self, client: int, sign: float) -> dict[str, AnyArray]:
        """The model at w + m ± p_k·d_k; arrays that are not trained are those that were sent out."""
        step = sign * self.shares[client]
        return dict(self.model) | {
            name: (self.model[name] + self.mean[name] + step * change).astype(self.model[name].dtype)
            for name, change in self.change(client).items()
        }


def _product(one: Arrays, other: Arrays) -> float:
    return sum(float(np.vdot(one[name], other[name])) for name in one)
