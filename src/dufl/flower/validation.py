"""Whether a client's update may be used: what it claims, against what it agreed to; its weights."""

import numpy as np
from flwr.app import Message

from dufl.errors import InputError
from dufl.flower import messages
from dufl.flower.deal import Deal

Shapes = dict[str, tuple[int, ...]]


def judge(
    reply: Message, client: int, round: int, deal: Deal | None, like: Shapes
) -> tuple[messages.Claim | None, str]:
    """A client's claim, which is taken out of its reply, and why its update must not be used.

    Args:
        reply: what came.
        client: who is at the node that it came from.
        round: from 0.
        deal: what was agreed.
        like: the shapes of the weights that were sent out.

    Returns:
        The claim, if there is one, and the reason; it is empty if the update may be used.
    """
    try:
        claim = messages.Claim.read(reply.content)
    except InputError as fault:
        return None, f"no claim: {fault}"
    del reply.content[messages.RECORD]
    hashes = deal.hashes.get(client, ()) if deal else ()
    at = round - (deal.first_round if deal else 0)
    if claim.client != client:
        return claim, f"claims to be client {claim.client}"
    if not 0 <= at < len(hashes) or messages.commitment(claim.committed, claim.nonce) != hashes[at]:
        return claim, f"claims to have agreed to {claim.committed} samples, which it has not"
    return claim, _fault(reply, like)


def _fault(reply: Message, like: Shapes) -> str:
    """What is wrong with the weights in a reply."""
    arrays: dict[str, messages.Anything] = {}
    try:
        for record in reply.content.array_records.values():
            arrays |= messages.from_arrays(record)
    except InputError:
        return "weights that cannot be read"
    if {name: array.shape for name, array in arrays.items()} != like:
        return "weights of another shape"
    if any(array.dtype.kind not in "fiub" for array in arrays.values()):
        return "weights that are no numbers"
    if any(np.isnan(array).any() for array in arrays.values()):
        return "weights that are not a number"
    if any(np.isinf(array).any() for array in arrays.values()):
        return "infinite weights"
    return ""


def counted(claim: messages.Claim, reply: Message) -> Message:
    """An update that weighs as much as the client's claim."""
    for record in reply.content.metric_records.values():
        if "num-examples" in record:
            record["num-examples"] = claim.volume
    return reply
