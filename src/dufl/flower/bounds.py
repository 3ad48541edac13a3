"""Bounded updates: no client moves the model much farther than the others do in the same round.

The size of an update is the Euclidean norm of the difference between the weights that a client returns and
those that it received. An update that is larger than a multiple of the median of its round is scaled down to
that multiple (norm clipping; Sun et al. 2019, Can You Really Backdoor Federated Learning?). As long as fewer
than half of the clients lie, the median is one of an honest client. With an even number, it is the smaller of
the two in the middle. Updates of size 0 do not count in it: a client without samples has nothing to change.
"""

from collections.abc import Mapping

import numpy as np
from flwr.app import Message

from dufl.flower.messages import AnyArray, from_arrays, to_arrays


def update_size(reply: Message, model: Mapping[str, AnyArray]) -> float:
    """‖w_k − w‖ of a reply; infinite if it is too large for a number."""
    with np.errstate(over="ignore"):
        squares = [float(np.sum(np.square(change))) for change in _changes(reply, model).values()]
    return float(np.sqrt(sum(squares)))


def bound_updates(
    updates: Mapping[int, Message], sizes: Mapping[int, float], model: Mapping[str, AnyArray], multiple: float
) -> dict[int, float]:
    """Scale down updates that are larger than a multiple of the median, in place.

    Args:
        updates: the replies, by client.
        sizes: of the updates, by client.
        model: the weights that were sent out.
        multiple: of the median size that is allowed.

    Returns:
        The sizes of the updates that were scaled down, relative to the median, by client.
    """
    counted = sorted(size for size in sizes.values() if size > 0)
    if not counted:
        return {}
    median = counted[(len(counted) - 1) // 2]
    large = {client: size / median for client, size in sizes.items() if size / median > multiple}
    for client, ratio in large.items():
        _scale(updates[client], model, multiple / ratio)
    return large


def returned_arrays(reply: Message) -> dict[str, AnyArray]:
    """The arrays of a reply, by name."""
    arrays: dict[str, AnyArray] = {}
    for record in reply.content.array_records.values():
        arrays |= from_arrays(record)
    return arrays


def _changes(reply: Message, model: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """w_k − w, by the name of the array, in double precision."""
    with np.errstate(over="ignore"):
        return {
            name: np.asarray(array, np.float64) - np.asarray(model[name], np.float64)
            for name, array in returned_arrays(reply).items()
        }


def _scale(reply: Message, model: Mapping[str, AnyArray], share: float) -> None:
    """Replace the weights of a reply by w + share·(w_k − w); counters keep their type."""
    changes = _changes(reply, model)
    for key, record in list(reply.content.array_records.items()):
        scaled = {}
        for name in record:
            before = np.asarray(model[name])
            after = before + share * changes[name]
            scaled[name] = (np.rint(after) if before.dtype.kind in "iu" else after).astype(before.dtype)
        reply.content[key] = to_arrays(scaled)
