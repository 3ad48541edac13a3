"""A recording, replayed: every round uses what was known by then, and is tested on what came next.

The first part of the recorded time is the warm-up; the rest is divided into one period per round.

    before round 0   every client holds samples that it recorded in the warm-up
    round t          the model trains on the buffers, which hold samples of the periods before t; it is tested
                     on period t; meanwhile every client collects from its own samples of period t
    round t + 1      the collected samples are in the buffers

This is a prequential evaluation: test first, then train. Nothing that is computed in round t depends on a
sample that was recorded after period t, and no weights depend on the samples of period t.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import Ageing
from dufl.data.client_data import ClientData, IndexedStream, Period, StreamFactory
from dufl.data.discard.discarding import Discard, check_labels, plugin_name
from dufl.data.recording import Recording, Times
from dufl.data.samples import Indices, Pool, Samples
from dufl.data.streams import BEFORE
from dufl.errors import InputError

Periods = Literal["time", "count"]
Order = Literal["newest", "random"]
Deal = Literal["even", "blocks"]
Normalize = Literal["first", "running", "none"]


@dataclass(frozen=True, eq=False)
class Timeline:
    """The periods of a recording.

    Attributes:
        edges: positions of samples, of shape (rounds + 1,). Period t has the samples from `edges[t]` to
            `edges[t + 1]`; the warm-up has those before `edges[0]`.
        times: the times of the edges.
    """

    edges: Indices
    times: Times

    @property
    def num_rounds(self) -> int:
        """The number of periods."""
        return len(self.edges) - 1

    def period(self, round: int) -> slice:
        """The samples of a period; those of the warm-up for round −1."""
        begin = 0 if round == BEFORE else int(self.edges[round])
        return slice(begin, int(self.edges[round + 1]))


def divide(
    recording: Recording, num_rounds: int, warm_up: float = 0.1, periods: Periods = "time"
) -> Timeline:
    """Divide the recorded time into a warm-up and one period per round.

    Samples of the same time are always in the same period.

    Args:
        recording: what was recorded.
        num_rounds: the number of periods.
        warm_up: the share of the recorded time, or of the samples, that is known before round 0.
        periods: "time" for periods of equal length, "count" for periods with equally many samples.
    """
    times, size = recording.times, len(recording)
    if periods == "time":
        bounds = times[0] + np.linspace(warm_up, 1.0, num_rounds + 1) * (times[-1] - times[0])
        edges = np.searchsorted(times, bounds[:-1])
    else:
        wanted = np.rint(np.linspace(warm_up, 1.0, num_rounds + 1)[:-1] * size).astype(np.int64)
        bounds = np.append(times[np.minimum(wanted, size - 1)], times[-1])
        edges = np.searchsorted(times, bounds[:-1])
    if edges[0] == 0:
        raise InputError.of("warm_up", "large enough to hold at least one sample", f"{warm_up:g}")
    filled = np.count_nonzero(np.diff(np.append(edges, size)))
    if periods == "count" and filled < num_rounds:
        rule = f"at most {max(filled, 1):,}, the number of periods that have samples"
        raise InputError.of("num_rounds", rule, f"{num_rounds:,}")
    return Timeline(np.append(edges, size).astype(np.int64), bounds)


@dataclass(frozen=True, eq=False)
class Replay(ClientData):
    """The data of a federation from a recording.

    Attributes:
        recording: what was recorded.
        timeline: its periods.
        num_clients: to whom samples are dealt if the recording does not say who recorded them.
        seed: of dealing, of collecting at random, and of discarding.
        order: which samples of a period a client collects if there are more than it needs: the newest, or
            some at random.
        deal: "even" deals every sample to a random client, as evenly as possible; "blocks" gives every
            client one block of consecutive samples in each period.
        dirichlet_alpha: deal by class instead, with class proportions per client from this Dirichlet
            distribution; see `SimulatedStream`.
        normalize: "first" standardizes features with the mean and deviation of the warm-up; "running"
            standardizes the samples of a period with those of everything before it; "none" uses features as
            they were recorded. Pixels are scaled by 1/255 and never standardized.
        discard: which samples a buffer discards; see `Discarding`.
        make_stream: see `ClientData`.
    """

    recording: Recording
    timeline: Timeline
    num_clients: int
    seed: int = 0
    order: Order = "newest"
    deal: Deal = "even"
    dirichlet_alpha: float | None = None
    normalize: Normalize = "first"
    discard: Discard = "uniform"
    make_stream: StreamFactory | None = None

    def __post_init__(self) -> None:
        names = self.recording.client_names
        if names and len(names) != self.num_clients:
            rule = f"{len(names):,}, the number of clients in the recording {self.recording.name!r}"
            raise InputError.of("clients.count", rule, f"{self.num_clients:,}")
        if self.dirichlet_alpha is not None and self.recording.task == "regression":
            raise InputError.of("dirichlet_alpha", "left out for regression", f"{self.dirichlet_alpha:g}")
        numbers = self.recording.task == "regression"
        check_labels(self.discard, plugin_name(self.discard), numbers, "data.discard")
        empty = [k for k, own in enumerate(self._own) if not len(own)]
        if empty:
            rule = f"at most the {self.num_clients - len(empty):,} clients that get samples"
            raise InputError.of("clients.count", rule, f"{self.num_clients:,}: client {empty[0]} has no data")

    @cached_property
    def pool(self) -> Samples:  # type: ignore[override]
        """All samples, normalized."""
        samples = normalized(self.recording.samples, self.timeline, self.normalize)
        return samples if self.make_stream is None else Pool(samples)

    @property
    def test(self) -> Samples:  # type: ignore[override]
        """All samples: every period is a test set once."""
        return self.pool

    @property
    def ageing(self) -> Ageing:  # type: ignore[override]
        """Nothing ages artificially."""
        return Ageing(time_sensitivity=0.0, num_rounds=self.timeline.num_rounds)

    @property
    def num_classes(self) -> int:
        """The number of outputs of a model."""
        return self.recording.num_classes

    def test_range(self, round: int) -> slice:
        """The samples of the period of a round."""
        return self.timeline.period(round)

    def collectable(self, client: int, round: int) -> Indices:
        """A client's own samples of the period of a round, or of the warm-up for round −1, by time."""
        own, period = self._own[client], self.timeline.period(round)
        begin, end = np.searchsorted(own, [period.start, period.stop])
        return own[begin:end]

    def available(self) -> Indices:
        """What clients can collect in the warm-up and in every round, of shape (rounds + 1, clients)."""
        edges = np.concatenate([[0], self.timeline.edges])
        return np.stack([np.diff(np.searchsorted(own, edges)) for own in self._own], axis=1)

    def source(self, client: int) -> IndexedStream:
        """What a client can collect in a round: its own samples of that period."""

        def indices(count: int, round: int) -> Indices:
            there = self.collectable(client, round)
            if count >= len(there):
                return there
            if self.order == "newest":
                return there[len(there) - count :]
            generator = np.random.default_rng([self.seed, client, round + 1, 1])
            return np.sort(generator.choice(there, count, replace=False))

        return IndexedStream(indices, self.pool)

    def known(self, round: int) -> int:
        """The number of samples that are known when a round has collected."""
        return int(self.timeline.edges[round + 1])

    def period(self, round: int) -> Period:
        """The period of a round, with the scores of two predictions that need no model."""
        samples = self.timeline.period(round)
        begin, end = self.timeline.times[round : round + 2].tolist()
        labels = self.recording.samples.labels
        no_change, majority = free_scores(labels, samples, self.recording.task == "regression")
        return Period(begin, end, self.recording.dated, samples.stop - samples.start, no_change, majority)

    @cached_property
    def _own(self) -> Sequence[Indices]:
        """The samples of every client, by time."""
        who = self.recording.clients
        if who is None:
            who = self._dealt()
        order = np.argsort(who, kind="stable")
        edges = np.searchsorted(who[order], np.arange(self.num_clients + 1))
        return [order[a:b] for a, b in pairwise(edges)]

    def _dealt(self) -> npt.NDArray[np.int64]:
        """Whose sample each is. The client of a sample does not depend on later samples."""
        size, number = len(self.recording), self.num_clients
        generator = np.random.default_rng([self.seed, 10])
        if self.dirichlet_alpha is not None:
            classes = self.recording.num_classes
            shares = generator.dirichlet(np.full(classes, self.dirichlet_alpha), number) + 1e-12
            upto = np.cumsum(shares / shares.sum(axis=0), axis=0)  # of every class, over the clients
            drawn = generator.random(size)
            labels = self.recording.samples.labels
            return np.asarray(np.minimum((drawn[:, None] >= upto.T[labels]).sum(axis=1), number - 1))
        if self.deal == "blocks":
            parts = [self.timeline.period(t) for t in range(BEFORE, self.timeline.num_rounds)]
            sizes = [part.stop - part.start for part in parts]
            return np.concatenate([np.arange(n) * number // max(n, 1) for n in sizes])
        rows = generator.random((math.ceil(size / number), number)).argsort(axis=1)
        return np.asarray(rows.ravel()[:size])


def normalized(samples: Samples, timeline: Timeline, how: Normalize) -> Samples:
    """The samples with standardized features; see `Replay`. No statistics use a later period."""
    if how == "none" or samples.features.dtype == np.uint8:
        return samples
    features = samples.features.reshape(len(samples), -1)
    result, edge = np.empty_like(features), int(timeline.edges[0])
    first = features[:edge].mean(axis=0, dtype=np.float64)
    # Sums of the deviations from the first mean, which stay small: of everything before a period.
    count, total, squares = 0, np.zeros_like(first), np.zeros_like(first)
    for t in range(BEFORE, timeline.num_rounds):
        part = timeline.period(t)
        deviation = features[part] - first
        if t == BEFORE or how == "running":
            seen = deviation if t == BEFORE else deviation[:0]
            mean = _mean(total + seen.sum(axis=0), count + len(seen))
            variance = _mean(squares + (seen**2).sum(axis=0), count + len(seen)) - mean**2
            scale = np.sqrt(np.maximum(variance, 0))
            scale[scale <= 1e-7 * np.maximum(np.abs(first + mean), 1e-30)] = 1.0  # constant so far
        result[part] = (deviation - mean) / scale
        count, total = count + len(deviation), total + deviation.sum(axis=0)
        squares = squares + (deviation**2).sum(axis=0)
    return Samples(result.reshape(samples.features.shape), samples.labels)


def _mean(total: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    return total / count


def free_scores(labels: npt.NDArray[Any], period: slice, regression: bool) -> tuple[float, float]:
    """The scores in a period of "no change" and of "majority", predictions that need no model.

    "No change" predicts the label of the previous sample. "Majority" predicts the most frequent label before
    the period. The scores are accuracies. For regression, the second predicts the mean label, and the scores
    are root mean squared errors. Both are NaN for an empty period.

    >>> free_scores(np.array([0, 0, 1, 1, 0, 0]), slice(3, 6), regression=False)
    (0.6666666666666666, 0.6666666666666666)
    """
    truth, before = labels[period], labels[: period.start]
    last = labels[period.start - 1 : period.stop - 1]
    if not len(truth):
        return math.nan, math.nan
    if regression:
        errors = truth - last.astype(np.float64), truth - before.mean(dtype=np.float64)
        return float(np.sqrt(np.mean(errors[0] ** 2))), float(np.sqrt(np.mean(errors[1] ** 2)))
    return float(np.mean(truth == last)), float(np.mean(truth == np.bincount(before).argmax()))
