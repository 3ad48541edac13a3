"""The updates of a round as they arrive."""

from collections.abc import Iterator
from types import TracebackType

from dufl.learning.algorithm import Mean, Update, refusal


class Arrivals:
    """The updates that may be used, in the order of clients, each judged as it arrives.

    They are read in a `with` block. However far an algorithm has read by its end, and whatever it did with an
    exception that was met in training, all updates are judged after it, or that exception is raised.

    Attributes:
        used: the clients whose updates may be used.
        refused: the other clients, and why not.
        model_buffers: the mean of what else the models keep.
    """

    def __init__(self, updates: Iterator[Update], size: int) -> None:
        """Judge updates of models with `size` weights."""
        self.used: list[int] = []
        self.refused: dict[str, str] = {}
        self.model_buffers = Mean()
        self._updates = updates
        self._size = size
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        while True:
            update = self._next()
            reason = refusal(update, self._size)
            if not reason:
                self.used.append(update.client)
                self.model_buffers.add(update.model_buffers, update.volume)
                return update
            self.refused[str(update.client)] = reason

    def _next(self) -> Update:
        try:
            return next(self._updates)
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = error
            raise

    def __enter__(self) -> "Arrivals":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._failure is not None and error is not self._failure:
            raise self._failure
        if error is None:
            for _ in self:
                pass
