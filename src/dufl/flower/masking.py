"""Sums that the server can add up and not take apart.

Every two clients share a secret that the server does not know (X25519). For every question each of them
draws the same mask from it; one adds it to its answer and the other takes it away, so that the masks are
gone in the sum over all clients, and only there. Answers are whole numbers modulo 2⁶⁴: nothing is rounded
but once, at the start. If a client of the roster does not answer, the sum is noise, and the question is put
again to the others under another name, for which all masks are new.

A server that passes keys on truthfully learns sums alone. One that makes up clients of its own, or hands out
keys of its own, is not kept from learning more; see docs/flower.md.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dufl.errors import InputError
from dufl.game.dynamics import Array

Masked = npt.NDArray[np.uint64]
UNIT = 2.0**-20  # of a sample, to which answers are rounded
MOST = 2.0**40  # samples that an answer may have


def new_key() -> bytes:
    """A client's private key, to be kept."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """What the others may know."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def masked(values: Array, client: int, private: bytes, roster: Mapping[int, bytes], question: str) -> Masked:
    """A client's answer behind its masks.

    Args:
        values: the answer, numbers of samples.
        client: whose.
        private: its key.
        roster: the public keys of all clients that are asked, its own among them.
        question: a name that no other question to these clients has.
    """
    if not (np.isfinite(values).all() and (np.abs(values) <= MOST).all()):
        raise InputError.of("an answer", f"numbers up to {MOST:g}", values)
    if roster.get(client) != public_key(private):
        raise InputError.of("the roster", f"one with the key of client {client}", "another key")
    hidden = np.rint(np.asarray(values, np.float64) / UNIT).astype(np.int64).view(np.uint64)
    for other, key in roster.items():
        if other != client:
            mask = _mask(private, key, question, hidden.size).reshape(hidden.shape)
            hidden = hidden + mask if client < other else hidden - mask
    return hidden


def unmasked(total: Masked) -> Array:
    """The sum that is left when the masks of all clients have gone."""
    return np.asarray(total.view(np.int64) * UNIT)


def _mask(private: bytes, other: bytes, question: str, size: int) -> Masked:
    """The same for both clients, and like noise to everyone else."""
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    key = HKDF(hashes.SHA256(), 32, salt=None, info=b"dufl mask " + question.encode()).derive(secret)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), np.uint64)
