"""Masked answers: the server can compute their sum, but read none of them.

Every two clients share a secret that the server does not know (X25519). For every query both derive the same
mask from it; one adds the mask to its answer and the other subtracts it, so that the masks cancel in the sum
over all clients, and only there. Answers are integers modulo 2⁶⁴: they are rounded once, before masking. If a
client of the roster does not reply, the sum is noise; the server sends a new query to the others, under
another id, for which all masks are new.

A server that forwards public keys faithfully learns sums alone. The masks do not protect against a server
that invents clients or distributes keys of its own; see docs/security.md.

If a sum cannot be right, clients reveal the keys of the masks of one query, and the server removes the masks
of each answer. A key belongs to one pair and one query, and says nothing about the secret of the pair.
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


def check_public_key(key: bytes) -> bytes:
    """The key, if it can be used. A point of low order would make the secret of every pair zero.

    Raises:
        InputError: if it is not a public key, or if it is a point of low order.
    """
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        rule = "an X25519 public key: 32 bytes, and not a point of low order"
        raise InputError.of("key", rule, key.hex()) from None
    return key


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
    rounded = np.rint(np.asarray(values, np.float64) / UNIT).astype(np.int64).view(np.uint64)
    return rounded + _noise(client, mask_keys(client, private, roster, query_id), rounded.shape)


def unmask(total: Masked) -> Array:
    """The sum of all answers, from the sum of all masked answers."""
    return np.asarray(total.view(np.int64) * UNIT)


def unmask_answer(masked: Masked, client: int, keys: Mapping[int, bytes]) -> Array:
    """A client's answer, from its masked answer and its `mask_keys`."""
    return unmask(masked - _noise(client, keys, masked.shape))


def mask_keys(client: int, private: bytes, roster: Mapping[int, bytes], query_id: str) -> dict[int, bytes]:
    """The keys of the masks that a client shares with every other client of the roster, for one query."""
    if roster.get(client) != public_key(private):
        raise InputError.of("roster", f"one with the public key of client {client}", "another key")
    own = X25519PrivateKey.from_private_bytes(private)
    info = b"dufl mask " + query_id.encode()
    secrets = {
        other: own.exchange(X25519PublicKey.from_public_bytes(key))
        for other, key in roster.items()
        if other != client
    }
    return {
        other: HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(secret)
        for other, secret in secrets.items()
    }


def _noise(client: int, keys: Mapping[int, bytes], shape: tuple[int, ...]) -> Masked:
    """The sum of a client's masks. Of each pair, the client with the lower number adds the mask."""
    noise = np.zeros(shape, np.uint64)
    for other, key in keys.items():
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        mask = np.frombuffer(stream.update(bytes(noise.nbytes)), np.uint64).reshape(shape)
        noise = noise + mask if client < other else noise - mask
    return noise
