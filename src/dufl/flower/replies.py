"""Whether the reply of a client can be used: its claim, its weights, and the records that it consists of.

Flower's strategies raise an error if replies do not have the same records and metrics, which ends the run. A
reply that differs from most others, or that lacks what replies are weighted by, is therefore refused before a
strategy sees it.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping

from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from dufl.errors import InputError
from dufl.flower import messages
from dufl.flower.deal import Deal
from dufl.flower.ledger import Claim
from dufl.learning.algorithm import bad_values

Shapes = Mapping[str, tuple[int, ...]]
Layout = tuple[object, ...]
WEIGHT = (
    "num-examples"  # the metric that Flower's strategies weight replies by, unless they are told otherwise
)
LARGEST_TYPE = 8  # bytes of a number


def check_reply(
    reply: Message, client: int, round: int, deal: Deal, shapes: Shapes, max_age: Callable[[Claim], float]
) -> tuple[Claim | None, str]:
    """Check a client's claim and update. The claim is removed from the reply.

    Args:
        reply: of the client.
        client: the number of the client that is registered at the node.
        round: t, from 0.
        deal: what the client agreed to.
        shapes: of the weights that were sent out.
        max_age: returns the largest mean age that is possible for a claim of the client.

    Returns:
        The claim, if there is one, and why the update is refused; empty if it is accepted.
    """
    try:
        claim = messages.read_claim(reply.content)
    except InputError as error:
        return None, f"no valid claim: {error}"
    del reply.content[messages.RECORD]
    if claim.client != client:
        return claim, f"claims to be client {claim.client}"
    if not deal.is_kept_by(claim, round):
        return claim, f"claims a commitment to {claim.committed} samples that it has not made"
    oldest = max_age(claim)
    if claim.mean_age > oldest * (1 + 1e-9):
        return claim, f"claims a mean age of {claim.mean_age:g}, at most {oldest:g} is possible"
    return claim, claim.refusal or _check_weights(reply, shapes)


def _check_weights(reply: Message, shapes: Shapes) -> str:
    arrays: dict[str, messages.AnyArray] = {}
    try:
        for record in reply.content.array_records.values():
            arrays |= messages.from_arrays(record)
    except InputError:
        return "unreadable weights"
    if {name: array.shape for name, array in arrays.items()} != shapes:
        return "weights of the wrong shape"
    if (records := len(reply.content.array_records)) != 1:
        return f"weights in {records} records"
    if any(array.dtype.itemsize > LARGEST_TYPE for array in arrays.values()):
        return "weights that are not numeric"
    return bad_values(*arrays.values())


def weight_key(strategy: Strategy) -> str | None:
    """The metric that a strategy weights replies by; None if it is not known."""
    key = getattr(strategy, "weighted_by_key", None)
    return key if isinstance(key, str) else None


def with_claimed_volume(reply: Message, claim: Claim, key: str | None) -> Message:
    """The reply, weighted by the volume that the client claims.

    Args:
        reply: of the client.
        claim: of the client.
        key: the metric that the strategy weights replies by, if it is known.
    """
    for record in reply.content.metric_records.values():
        for name in {WEIGHT, key} & set(record):
            record[str(name)] = claim.volume
    return reply


def odd_replies(replies: Mapping[int, Message], key: str | None) -> dict[int, str]:
    """The clients whose replies a strategy cannot use together with those of the others, and why.

    Args:
        replies: by client.
        key: the metric that the strategy weights replies by, if it is known. Its values are positive.
    """
    reasons: dict[int, str] = {}
    layouts: dict[int, Layout] = {}
    for client in sorted(replies):
        if key is not None and not _has_weight(replies[client], key):
            reasons[client] = f"not one record of metrics, with a number > 0 under {key!r}"
        else:
            layouts[client] = _layout(replies[client])
    for usual, _ in Counter(layouts.values()).most_common(1):  # of two as common, that of the lowest number
        odd = {client for client, layout in layouts.items() if layout != usual}
        reasons |= dict.fromkeys(odd, "other records or metrics than most clients")
    return reasons


def _has_weight(reply: Message, key: str) -> bool:
    records = list(reply.content.metric_records.values())
    weight = records[0].get(key) if len(records) == 1 else None
    return isinstance(weight, int | float) and 0 < weight < math.inf


def _layout(reply: Message) -> Layout:
    """The names of a reply's records and metrics, and how long the metrics are that are lists."""
    metrics = reply.content.metric_records.items()
    rows = ((name, key, _length(value)) for name, record in metrics for key, value in record.items())
    return tuple(sorted(reply.content.array_records)), tuple(sorted(rows))


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else -1
