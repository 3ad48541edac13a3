"""Between PyTorch's datasets and DUFL's samples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from dufl.data.buffer import Snapshot
from dufl.data.samples import Samples
from dufl.data.streams import SimulatedStream, Stream


def stream_of(dataset: Any, seed: int = 0) -> Callable[[int], Stream[Samples]]:
    """A stream for every client that draws from a dataset of (features, label) pairs, held in memory."""
    if isinstance(dataset, TensorDataset):  # all at once
        features, labels = (tensor.numpy() for tensor in dataset.tensors)
    else:
        pairs = [dataset[index] for index in range(len(dataset))]
        features = np.stack([np.asarray(feature) for feature, _ in pairs])
        labels = np.array([int(label) for _, label in pairs])
    pool = Samples(features.astype(np.float32), labels.astype(np.int64))
    return lambda client: SimulatedStream(pool=pool, client=client, seed=seed)


def loader(held: Snapshot[Samples], batch_size: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """What a client holds, in shuffled batches."""
    features, labels = torch.from_numpy(held.samples.to_float()), torch.from_numpy(held.samples.labels)
    return DataLoader(TensorDataset(features, labels), batch_size=batch_size, shuffle=True)
