"""Augmentation: images are moved and mirrored anew in every epoch, when batches are made.

    crop    moves an image by up to an eighth of its height and width, each way; its edge fills what is empty
    flip    mirrors an image from left to right with a probability of one half

A. Krizhevsky, I. Sutskever, G. E. Hinton, *ImageNet Classification with Deep Convolutional Neural Networks*
(NeurIPS 2012). What happens to a sample depends on (seed, client, round, sample, epoch) alone: not on the
batch that it is in, on the other samples of the client, or on who computes it.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from dufl.data.ageing import sample_keys

if TYPE_CHECKING:
    from torch import Tensor

Augmentation = Literal["none", "crop", "flip", "crop-flip"]
Moves = npt.NDArray[np.int64]
_REACH = 8  # an image is moved by up to 1/_REACH of its size
_OWN = 11  # keeps the bits apart from those of other uses


def moves(
    augmentation: Augmentation,
    size: tuple[int, int],
    epochs: int,
    ids: npt.NDArray[np.int64],
    seed: int,
    client: int,
    round: int,
) -> Moves:
    """What happens to every sample in every epoch: (epochs, samples, 3), with rows, columns, and 1 to mirror.

    >>> moves("crop-flip", (32, 32), 1, np.arange(3), seed=0, client=3, round=0)[0].tolist()
    [[-1, 0, 1], [-1, -1, 0], [-1, 0, 0]]
    """
    bits = np.stack([sample_keys(ids, seed, client, round + 1, epoch, _OWN) for epoch in range(epochs)])
    drawn = np.zeros((*bits.shape, 3), np.int64)
    if "crop" in augmentation:
        for axis, length in enumerate(size):
            reach = length // _REACH
            part = (bits >> np.uint64(21 * axis)) & np.uint64(2**21 - 1)
            drawn[..., axis] = part % np.uint64(2 * reach + 1)
            drawn[..., axis] -= reach
    if "flip" in augmentation:
        drawn[..., 2] = bits >> np.uint64(63)
    return drawn


def augment(images: "Tensor", moves: "Tensor") -> "Tensor":
    """Images (samples, channels, height, width), each moved and mirrored."""
    import torch

    count, _, height, width = images.shape
    rows, columns = (torch.arange(length, device=images.device) for length in (height, width))
    down = (rows + moves[:, :1]).clamp_(0, height - 1)
    across = torch.where(moves[:, 2:] == 1, width - 1 - columns, columns) + moves[:, 1:2]
    which = torch.arange(count, device=images.device)[:, None, None]
    moved = images.permute(0, 2, 3, 1)[which, down[:, :, None], across.clamp_(0, width - 1)[:, None, :]]
    return moved.permute(0, 3, 1, 2)
