"""How work is spread over the cores and still gives the same bits on any number of them.

Clients are divided into chunks of a fixed size; results come back in the order of the chunks, so that
sums run in one order. Linear algebra stays on one thread, and long sums are NumPy's own: a product `a @
b` of long arrays would be spread over threads, with other bits for another number of them.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

CHUNK = 8192  # clients
Result = TypeVar("Result")


def in_order(
    task: Callable[[slice], Result], size: int, progress: Callable[[float], None] = lambda _: None
) -> list[Result]:
    """Run a task on every chunk of `size` clients, on all cores; results in the order of the chunks."""
    parts = [slice(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK)]
    if len(parts) == 1:
        return [task(parts[0])]
    results = []
    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1)) as pool:
        for result in pool.map(task, parts):
            results.append(result)
            progress(len(results) / len(parts))
    return results


def one_thread() -> AbstractContextManager[Any]:
    """Keep linear algebra on one thread: for small systems faster, and the same on any machine."""
    return _controller().limit(limits=1)  # type: ignore[no-any-return]


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
