"""Distributes work over the cores, with results that do not depend on their number, bit for bit.

Clients are divided into chunks of a fixed size. Results are returned in the order of the chunks, so that the
order of sums is fixed. Linear algebra runs on one thread, and long sums use NumPy's `sum`: a product `a @ b`
of long arrays would run on several threads, and its bits would depend on their number.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from dufl.cores import cores

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
    with ThreadPoolExecutor(min(len(parts), cores())) as pool:
        for result in pool.map(task, parts):
            results.append(result)
            progress(len(results) / len(parts))
    return results


def one_thread() -> AbstractContextManager[Any]:
    """Limit linear algebra to one thread: faster for small systems, and deterministic."""
    return _controller().limit(limits=1)  # type: ignore[no-any-return]


@cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  # SciPy has a BLAS of its own, which must be loaded to be limited

    return ThreadpoolController()
