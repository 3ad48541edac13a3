"""Whether a recording drifts, and whether the age of a model or of data matters: what `dufl data show` draws.

The recorded samples are divided into periods with equally many of them, so that all distances have the same
noise and all models train on equally much. In every period:

    labels      the share of every class; for regression, mean, 10 % and 90 % quantile
    distances   of the features from the first and the previous period; see `dufl.data.distance`
    scores      of a model of every period, tested on every period; see `dufl.learning.age`

A period is cut into blocks of consecutive samples. Of every two blocks, one is for training and the other for
testing. Neighbours, which are often alike, are seldom on both sides. Large periods are represented by some of
their samples, equally many in all periods.

    >>> from dufl.data.datasets import load_recording
    >>> drift = measure_drift(load_recording("weather"), periods=6)
    >>> drift.scores.shape, drift.drifts, drift.age_loss < 0.05
    ((6, 6), True, True)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.distance import Distances, measure_distances
from dufl.data.recording import Recording, time_text
from dufl.data.replay import Timeline
from dufl.data.samples import Indices
from dufl.errors import InputError
from dufl.formatting import count, signed
from dufl.learning.age import score_matrix

Floats = npt.NDArray[np.float64]

LEAST, MOST = 10, 4000  # samples of a period: needed, and used
NUMBERS = 1 << 21  # features used of a period, over all of its samples
MOST_PERIODS = 100
BLOCKS = 20  # of a period
SHUFFLED = 60  # models of shuffled periods, at least
WORST = -1.0  # a lower R² counts as this in means
RELEVANT = 0.01  # a smaller loss of accuracy or R² does not matter
LARGE = 0.05  # a smaller loss is little
SMALL = 0.1  # a distance that exceeds noise by less is little


@dataclass(frozen=True, eq=False)
class Drift:
    """What changes in a recording. Periods are the first axis of every array.

    Attributes:
        recording: what was recorded.
        timeline: its periods.
        labels: shares of the classes, of shape (periods, classes); for regression, mean, 10 % and 90 %
            quantile of the labels, of shape (periods, 3). All samples are used.
        distances: between the features of periods, and the level of noise.
        scores: of the model trained on period i and tested on period j: accuracy, or R² for regression.
        shuffled_loss: the root mean square of `age_loss` if the samples are shuffled over all periods.
        used: the number of samples that represent a period, half for training and half for testing.
    """

    recording: Recording
    timeline: Timeline
    labels: Floats
    distances: Distances
    scores: Floats
    shuffled_loss: float
    used: int

    @property
    def num_periods(self) -> int:
        """The number of periods."""
        return len(self.scores)

    @cached_property
    def age_effect(self) -> Floats:
        """The mean change of the score with age: element a compares models that are a periods old with fresh.

        effect(a) = mean over j of  score(j − a, j) − score(j, j) .  Both are tested on the same samples, so a
        period that is hard for every model does not count as age. R² below −1 counts as −1.
        """
        loss = _losses(self.scores)
        return np.array([-_mean(np.diagonal(loss, a)) for a in range(self.num_periods)])

    @property
    def drifts(self) -> bool:
        """Whether the features change by more than noise: mostly, or once by half more than noise."""
        away, noise = self.distances.from_first[1:], self.distances.noise
        return bool(np.median(away) > noise or away.max() > 1.5 * noise)

    @property
    def age_loss(self) -> float:
        """What models lose of accuracy or R² that are at least half of the recording old."""
        return _mean(_old_losses(self.scores))

    @property
    def age_error(self) -> float:
        """The standard error of `age_loss` between the tested periods; 0 if there is only one."""
        lost = _old_losses(self.scores)
        return float(lost.std(ddof=1) / np.sqrt(len(lost))) if len(lost) > 1 else 0.0

    @property
    def age_hurts(self) -> bool:
        """Whether old models lose more than 0.01, and clearly more than by chance.

        That is more than twice the standard error, and more than three times that of a shuffled recording.
        """
        return self.age_loss > max(RELEVANT, 2 * self.age_error, 3 * self.shuffled_loss)

    @property
    def old(self) -> int:
        """The largest age of which there are two models, if there are more than two periods."""
        return max(1, self.num_periods - 2)

    def effect_text(self, age: int) -> str:
        """The change of the score at an age: points of accuracy, or R²."""
        effect = self.age_effect[age]
        if not np.isfinite(effect):
            return "unknown"
        return signed(effect, 2) if self.recording.task == "regression" else signed(100 * effect)

    def sentence(self) -> str:
        """Whether the features drift and whether age hurts, with the numbers."""
        noise, most = self.distances.noise, float(self.distances.from_first.max())
        little = " a little" if most < noise + SMALL else ""
        drifts = f"features drift{little}" if self.drifts else "features do not drift beyond noise"
        slightly = " a little" if self.age_loss < LARGE else ""
        hurts = f"age hurts{slightly}" if self.age_hurts else "age does not hurt"
        link = "and" if self.drifts == self.age_hurts else "but"
        regression = self.recording.task == "regression"
        what, unit = ("R²", "") if regression else ("accuracy", " points")
        ages = f"{what} {self.effect_text(1)}{unit} when one period old"
        if self.old > 1:
            ages += f", {self.effect_text(self.old)} when {self.old} periods old"
        return f"{drifts} (distance up to {most:.2f}, noise {noise:.2f}), {link} {hurts}: {ages}"

    def notes(self) -> list[str]:
        """What a reader has to know: how large periods are, what was left out, and what is unusual."""
        sizes = np.diff(self.timeline.edges)
        least, most = int(sizes.min()), int(sizes.max())
        each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        line = f"{self.num_periods} periods of {each} samples"
        if self.used < 0.9 * most:
            line += f"; distances and models use {self.used:,} of each"
        lines = [line]
        alone = np.flatnonzero(self.labels.max(axis=1) == 1.0)
        if len(alone) and self.recording.task != "regression":
            places = ", ".join(f"{t + 1}" for t in alone)
            has = "period {} has" if len(alone) == 1 else "periods {} have"
            lines.append(f"{has.format(places)} one class only: a model of it always predicts this class")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The numbers behind the figure, for JSON."""
        recording, edges, times = self.recording, self.timeline.edges, self.timeline.times
        regression = recording.task == "regression"
        names = ("mean", "low", "high") if regression else recording.class_names
        periods = [
            {
                "begin": time_text(times[t], recording.dated) if recording.dated else float(times[t]),
                "end": time_text(times[t + 1], recording.dated) if recording.dated else float(times[t + 1]),
                "samples": int(edges[t + 1] - edges[t]),
                "labels" if regression else "shares": dict(zip(names, self.labels[t].tolist(), strict=True)),
                "distance_from_first": float(self.distances.from_first[t]),
                "distance_from_previous": float(self.distances.from_previous[t]),
            }
            for t in range(self.num_periods)
        ]
        return {
            "name": recording.name,
            "task": recording.task,
            "samples": len(recording),
            "samples_used_per_period": self.used,
            "periods": periods,
            "noise": self.distances.noise,
            "r2" if regression else "accuracy": self.scores.tolist(),
            "age_effect": self.age_effect.tolist(),
            "age_loss": self.age_loss,
            "age_error": self.age_error,
            "shuffled_loss": self.shuffled_loss,
            "drifts": self.drifts,
            "age_hurts": self.age_hurts,
            "sentence": self.sentence(),
            "notes": self.notes(),
        }


def measure_drift(
    recording: Recording,
    periods: int = 12,
    seed: int = 0,
    progress: Callable[[float], object] = lambda _: None,
) -> Drift:
    """Measure how labels, features and the accuracy of models change in a recording.

    Args:
        recording: what was recorded.
        periods: the number of periods, from 2 to 100. Each must have at least 10 samples.
        seed: of the halves, of the samples that represent a large period, and of the shuffled order.
        progress: called with the share of the models that are done.
    """
    timeline = _divide(recording, periods)
    generator = np.random.default_rng([seed, 20])
    halves = _halves(recording, timeline, generator)
    rows = [np.sort(np.concatenate(pair)) for pair in halves]
    parts = [recording.samples.take(own).to_float().reshape(len(own), -1) for own in rows]
    distances = measure_distances(parts, generator)
    every, shuffles = np.concatenate(rows), max(4, -(-SHUFFLED // periods))
    mixed = [generator.permutation(every).reshape(periods, 2, -1) for _ in range(shuffles)]
    scores, *shuffled = _all_scores(recording, [np.array(halves), *mixed], progress)
    noise = float(np.sqrt(_mean(np.square([_mean(_old_losses(found)) for found in shuffled]))))
    labels = _labels(recording, timeline)
    return Drift(recording, timeline, labels, distances, scores, noise, len(rows[0]))


def _all_scores(
    recording: Recording, orders: Sequence[Indices], progress: Callable[[float], object]
) -> list[Floats]:
    """The scores of every order of the samples, of shape (periods, 2, samples): train on [0], test on [1]."""
    found = []
    for n, order in enumerate(orders):
        train, test = ([recording.samples.take(half) for half in order[:, side]] for side in (0, 1))

        def advance(share: float, n: int = n) -> None:
            progress((n + share) / len(orders))

        found.append(score_matrix(train, test, recording.num_classes, advance))
    return found


def _divide(recording: Recording, periods: int) -> Timeline:
    """Periods with equally many samples; those of the same time are in the same period."""
    if not 2 <= periods <= MOST_PERIODS:
        raise InputError.of("periods", f"from 2 to {MOST_PERIODS}", periods)
    times, size = recording.times, len(recording)
    wanted = np.rint(np.linspace(0, 1, periods + 1)[:-1] * size).astype(np.int64)
    edges = np.append(np.searchsorted(times, times[np.minimum(wanted, size - 1)]), size).astype(np.int64)
    sizes = np.diff(edges)
    if sizes.min() < LEAST:
        least = int(sizes.argmin())
        rule = f"so few that every period has at least {LEAST} samples"
        got = f"{periods}: period {least + 1} has {count(int(sizes[least]), 'sample')}"
        raise InputError.of("periods", rule, got)
    return Timeline(edges, np.append(times[edges[:-1]], times[-1]))


def _halves(
    recording: Recording, timeline: Timeline, generator: np.random.Generator
) -> list[tuple[Indices, Indices]]:
    """Samples of every period to train on and to test on, equally many in all periods."""
    pairs = []
    for t in range(timeline.num_rounds):
        period = timeline.period(t)
        places = np.arange(period.stop - period.start)
        blocks = min(BLOCKS, len(places) // 2 * 2)
        chosen = 2 * np.arange(blocks // 2) + generator.integers(0, 2, blocks // 2)  # one of two neighbours
        first = np.isin(places * blocks // len(places), chosen)
        pairs.append((period.start + places[first], period.start + places[~first]))
    features = int(np.prod(recording.shape))
    fitting = max(LEAST, min(MOST, NUMBERS // features)) // 2
    size = min(fitting, *(len(half) for pair in pairs for half in pair))
    return [
        (
            np.sort(generator.choice(train, size, replace=False)),
            np.sort(generator.choice(test, size, replace=False)),
        )
        for train, test in pairs
    ]


def _labels(recording: Recording, timeline: Timeline) -> Floats:
    """Shares of the classes, or mean and quantiles of numbers."""
    rows: list[Any] = []
    for t in range(timeline.num_rounds):
        labels = recording.samples.labels[timeline.period(t)]
        if recording.task == "regression":
            numbers = labels.astype(np.float64)
            rows.append([numbers.mean(), *np.quantile(numbers, [0.1, 0.9])])
        else:
            rows.append(np.bincount(labels, minlength=recording.num_classes) / len(labels))
    return np.array(rows)


def _mean(values: Floats) -> float:
    """The mean of the values that are numbers; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _losses(scores: Floats) -> Floats:
    """What every model loses compared with the fresh model of the tested period; R² is at least −1."""
    bounded = np.maximum(scores, WORST)
    return np.asarray(np.diagonal(bounded)[None, :] - bounded)


def _old_losses(scores: Floats) -> Floats:
    """The mean loss of models at least half of the recording old, for every period that has such models."""
    half, losses = len(scores) // 2, _losses(scores)
    lost = np.array([_mean(losses[: j - half + 1, j]) for j in range(half, len(scores))])
    return np.asarray(lost[np.isfinite(lost)])
