"""A pool of worker processes; a worker that dies is replaced and its job is repeated."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dufl.errors import DuflError, InputError, PluginError, RemoteError
from dufl.learning.engine import spread

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from dufl.learning.worker import main; main()"
ATTEMPTS = 3  # per job, if the worker dies


class WorkerDiedError(Exception):
    """A worker process ended unexpectedly."""


class Process:
    """One worker process, which handles one job at a time."""

    def __init__(self, setup: Any, descriptors: Sequence[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(Path(__file__).parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            process_group=0,  # Ctrl-C must reach only the parent process
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self._setup = setup
        self._started: Any = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ready(self) -> Any:
        """Set up the worker, once, and return its reply."""
        if self._started is None:
            self._started = self._call(self._setup)
        return self._started

    def call(self, job: Any) -> Any:
        """The reply to a job."""
        self.ready()
        return self._call(job)

    def _call(self, job: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(job, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            kind, reply = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise WorkerDiedError from error
        if kind == "refused":
            message, field = reply
            raise InputError(message, field=field)
        if kind == "raised":
            message, trace = reply
            raise PluginError(message) from RemoteError(trace)
        if kind == "failed":
            raise DuflError(reply)
        return reply

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # it died while reading a job
                    stream.close()


class Workers:
    """A pool of worker processes that share the jobs."""

    def __init__(self, count: int, setup: Any, descriptors: Sequence[int]) -> None:
        self._setup, self._descriptors = setup, descriptors
        self._ahead = 2 * count
        self._closed = False
        self._threads = ThreadPoolExecutor(count)
        self._free: SimpleQueue[int] = SimpleQueue()
        self._processes: list[Process] = []
        self.deaths = 0
        try:
            for index in range(count):
                self._processes.append(self._process())
                self._free.put(index)
        except BaseException:
            self.close()
            raise

    def _process(self) -> Process:
        return Process(self._setup, self._descriptors)

    @property
    def pids(self) -> list[int]:
        """The process ids."""
        return [process.pid for process in self._processes]

    def ready(self) -> Any:
        """Set up a worker and return its reply."""
        return self._attempt(None)

    def do(self, jobs: Iterable[Any]) -> Iterator[Any]:
        """The replies, in the order of the jobs."""
        return spread(self._threads, self._attempt, jobs, self._ahead)

    def _attempt(self, job: Any) -> Any:
        index = self._free.get()
        try:
            for _ in range(ATTEMPTS):
                try:
                    worker = self._processes[index]
                    return worker.ready() if job is None else worker.call(job)
                except WorkerDiedError:
                    if self._closed:
                        raise
                    self.deaths += 1
                    self._processes[index].close()
                    self._processes[index] = self._process()
        finally:
            self._free.put(index)
        raise DuflError(
            f"a worker died {ATTEMPTS} times on the same client: if memory is short, set training.workers=1"
        )

    def close(self) -> None:
        """Stop all workers at once, even in the middle of a job."""
        self._closed = True
        for process in self._processes:
            process.close()
        self._threads.shutdown(cancel_futures=True)
