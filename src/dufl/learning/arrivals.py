"""The updates of a round as they arrive."""

from collections.abc import Iterator
from types import TracebackType

from dufl.learning.algorithm import Mean, Update, refusal


class Arrivals:
    """The valid updates, in client order, each checked as it arrives.

    They are read in a `with` block. At its end all remaining updates are checked, even if the algorithm did
    not read them. If training raised an exception that the algorithm caught, it is raised again there.

    Attributes:
        used: the clients whose updates are valid.
        refused: the other clients, with the reason.
        model_buffers: the mean of the models' buffers.
    """

    def __init__(self, updates: Iterator[Update], size: int) -> None:
        """Check updates of models with `size` weights."""
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
