"""How many samples fit into this machine's memory: to refuse what could only end in a hang or a kill."""

import os
from functools import cache

RECORD = 96  # bytes that a sample held takes beside its features: place, label, birth, number, and copies


@cache
def memory() -> int:
    """The bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def most_samples(num_features: int = 0) -> int:
    """How many samples of so many float32 features fit into memory; without features, references to them."""
    return memory() // (4 * num_features + RECORD)
