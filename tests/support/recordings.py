"""Recordings with known laws."""

from typing import Any

import numpy as np

import dufl
from dufl.data.recording import Recording, make_recording


def hyperplane(size: int = 3000, turns: float = 0.0, seed: int = 0, noise: float = 0.05) -> Recording:
    """Two classes on both sides of a line through 0, which makes `turns` turns during the recorded time."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((size, 4)).astype(np.float32)
    angle = 2 * np.pi * turns * np.arange(size) / size
    y = (x[:, 0] * np.cos(angle) + x[:, 1] * np.sin(angle) > 0).astype(np.int64)
    flipped = generator.random(size) < noise
    return make_recording("hyperplane", x, np.where(flipped, 1 - y, y), np.arange(size))


def linear(size: int = 2000, seed: int = 0, noise: float = 0.1) -> tuple[Recording, Any]:
    """Numbers that are a linear function of the features, and its coefficients with the constant last."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((size, 5)).astype(np.float32)
    coefficients = np.array([2.0, -1.0, 0.5, 0.0, 3.0, 7.0])
    y = x @ coefficients[:-1] + coefficients[-1] + noise * generator.standard_normal(size)
    return make_recording("linear", x, y, np.arange(size), task="regression"), coefficients


def recorded(recording: Recording, clients: int = 4, rounds: int = 10, **options: Any) -> dufl.Experiment:
    """A small experiment on a recording; options are those of `Data`, `policy`, or of training."""
    names = dufl.Data.model_fields
    data = {name: options.pop(name) for name in list(options) if name in names}
    policy, volume = options.pop("policy", "keep-all"), options.pop("initial_volume", 1000.0)
    training = dufl.Training(**({"local_epochs": 3, "learning_rate": 0.05} | options))
    game = dufl.Game(clients=dufl.Clients.draw(clients, initial_volume=volume), num_rounds=rounds)
    return dufl.Experiment(game=game, data=dufl.Data(recording, **data), training=training, policy=policy)
