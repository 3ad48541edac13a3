"""Masked answers: the server can compute their sum, but read none of them.

Every two clients share a secret that the server does not know (X25519). For every query both derive the same
mask from it; one adds the mask to its answer and the other subtracts it, so that the masks cancel in the sum
over all clients, and only there. Answers are integers modulo 2⁶⁴: they are rounded once, before masking. If a
client of the roster does not reply, the sum is noise; the server sends a new query to the others, under
another id, for which all masks are new.

A server that forwards public keys faithfully learns sums alone. The masks do not protect against a server
that invents clients or distributes keys of its own; see docs/flower.md.
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
UNIT = 2.0**-20  # samples; answers are rounded to multiples of it
LARGEST = 2.0**40  # samples in an answer


def new_key() -> bytes:
    """A new private key for a client."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key that belongs to a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def mask(values: Array, client: int, private: bytes, roster: Mapping[int, bytes], query_id: str) -> Masked:
    """Mask a client's answer.

    Args:
        values: the answer, in samples.
        client: the number of the client.
        private: its private key.
        roster: the public keys of all clients that receive the query, its own included.
        query_id: unique among the queries to these clients.
    """
    if not (np.isfinite(values).all() and (np.abs(values) <= LARGEST).all()):
        raise InputError.of("values", f"numbers of magnitude {LARGEST:g} at most", values)
    if roster.get(client) != public_key(private):
        raise InputError.of("roster", f"one with the public key of client {client}", "another key")
    masked = np.rint(np.asarray(values, np.float64) / UNIT).astype(np.int64).view(np.uint64)
    for other, key in roster.items():
        if other != client:
            noise = _shared_noise(private, key, query_id, masked.size).reshape(masked.shape)
            masked = masked + noise if client < other else masked - noise
    return masked


def unmask(total: Masked) -> Array:
    """The sum of all answers, from the sum of all masked answers."""
    return np.asarray(total.view(np.int64) * UNIT)


def _shared_noise(private: bytes, other: bytes, query_id: str, size: int) -> Masked:
    """Equal for both clients, and indistinguishable from noise for everybody else."""
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    key = HKDF(hashes.SHA256(), 32, salt=None, info=b"dufl mask " + query_id.encode()).derive(secret)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), np.uint64)
