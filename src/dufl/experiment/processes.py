"""Runs in other processes, several at a time, each with its share of the cores.

The processes are separate programs; see `run_process`. Experiments are sent to them by cloudpickle, so that
classes of a notebook work. If an experiment cannot be sent, runs are left to this process, with a warning. A
process that dies is replaced and its run is repeated, or resumed if it is on the disk. All processes end with
this one.
"""

import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from dufl import errors
from dufl.cores import SHARE, cores
from dufl.errors import DuflError, InputError, PluginError, RemoteError
from dufl.experiment.run_process import Order, Outcome, Setup
from dufl.experiment.runs import Job, Observer, Options, Result
from dufl.experiment.train import Run

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from dufl.experiment.run_process import main; main()"
ATTEMPTS = 3  # per run, if its process dies
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_DIED = ("died", None)

Message = tuple[str, Any]


def train_in_processes(
    jobs: Sequence[Job], processes: int, options: Options, observer: Observer
) -> Generator[tuple[Job, Result], None, Sequence[Job]]:
    """Train runs in other processes; yields each with its result when it ends.

    Returns:
        The runs that have to be trained in this process; all, if their experiments cannot be sent.
    """
    if options.callbacks:
        rule = "1 with callbacks, which are called in this process"
        raise InputError.of("jobs", rule, options.processes)
    try:
        setup = _setup(jobs)
    except Exception as error:  # a user's own objects may raise anything
        return _left_here(jobs, f"{type(error).__name__}: {error}")
    pool = Pool(jobs, processes, setup, options)
    try:
        yield from pool.results(observer)
    finally:
        pool.close()
    left = [job for job in jobs if job not in pool.over]
    return _left_here(left, pool.unusable) if pool.unusable else []


def _left_here(jobs: Sequence[Job], reason: str) -> Sequence[Job]:
    text = f"runs are trained one after the other, as they cannot be sent to other processes: {reason}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return jobs


def _setup(jobs: Sequence[Job]) -> bytes:
    """The first message: the import path, and the experiments. Samples that they share are sent once."""
    import cloudpickle

    path = tuple(folder or os.getcwd() for folder in sys.path)
    return pickle.dumps(Setup(path, bytes(cloudpickle.dumps([job.experiment for job in jobs]))))


class Process:
    """A process that trains one run at a time. Its messages arrive in a queue."""

    def __init__(self, setup: bytes, share: int, messages: "SimpleQueue[tuple[Process, Message]]") -> None:
        alone = dict.fromkeys(_THREADS, "1") | {SHARE: str(share), "NUMBA_NUM_THREADS": str(share)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(Path(__file__).parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C must reach only the parent process
            env=os.environ | alone,
        )
        self.job: int | None = None
        self._messages = messages
        self._setup: bytes | None = setup
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def train(self, place: int, order: Order) -> None:
        """Begin a run."""
        self.job = place
        content = (self._setup or b"") + pickle.dumps(order)
        self._setup = None
        threading.Thread(target=self._write, args=(content,), daemon=True).start()  # samples may be many

    def pause(self) -> None:
        """Pause the run after its current round."""
        self._process.terminate()

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError, ValueError):  # it died while reading
                assert stream is not None
                stream.close()

    def _write(self, content: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it died, which the reader notices
            self._process.stdin.write(content)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                message: Message = pickle.load(self._process.stdout)
            except Exception:  # the end, or half a message
                self._messages.put((self, _DIED))
                return
            self._messages.put((self, message))


class Pool:
    """Processes that share the runs."""

    def __init__(self, jobs: Sequence[Job], processes: int, setup: bytes, options: Options) -> None:
        self._jobs, self._setup, self._options = jobs, setup, options
        self._share = max(1, cores() // processes)
        self._messages: SimpleQueue[tuple[Process, Message]] = SimpleQueue()
        self._waiting = deque(range(len(jobs)))
        self._deaths = [0] * len(jobs)
        self._pausing = False
        self._processes: list[Process] = []
        self.unusable = ""  # why experiments cannot be sent
        self.over: set[Job] = set()
        try:
            for _ in range(processes):
                self._processes.append(self._process())
        except BaseException:
            self.close()
            raise

    def _process(self) -> Process:
        return Process(self._setup, self._share, self._messages)

    def results(self, observer: Observer) -> Generator[tuple[Job, Result], None, None]:
        """All runs with their results, in the order in which they end."""
        for process in self._processes:
            self._next(process)
        while any(process.job is not None for process in self._processes) and not self.unusable:
            if observer.stopping and not self._pausing:
                self._pause()
            try:
                process, message = self._messages.get(timeout=0.1)
            except Empty:
                continue
            yield from self._handle(process, message, observer)

    def _next(self, process: Process) -> None:
        """Begin the next run, if there is one."""
        process.job = None
        if self._waiting:
            place = self._waiting.popleft()
            job, again = self._jobs[place], self._deaths[place] > 0
            resume = self._options.resume or (again and job.out is not None)
            process.train(place, Order(place, job.seed, job.out, resume, self._options.force))

    def _pause(self) -> None:
        self._pausing = True
        self._waiting.clear()
        for process in self._processes:
            if process.job is not None:
                process.pause()

    def _handle(
        self, process: Process, message: Message, observer: Observer
    ) -> Generator[tuple[Job, Result], None, None]:
        kind, content = message
        if process.job is None or process not in self._processes:
            return  # a process that was not needed any more
        place = process.job
        job = self._jobs[place]
        if kind == "round":
            observer.on_round(job, content)
        elif kind == "unusable":
            self.unusable = content
        elif message == _DIED:
            yield from self._replace(process, place)
        else:
            self.over.add(job)
            self._next(process)
            yield job, _result(job, kind, content)

    def _replace(self, process: Process, place: int) -> Generator[tuple[Job, Result], None, None]:
        """Begin a run again whose process died."""
        self._deaths[place] += 1
        process.close()
        self._processes.remove(process)
        job = self._jobs[place]
        if self._deaths[place] == ATTEMPTS:
            self.over.add(job)
            advice = "if memory is short, train fewer runs at a time"
            yield job, DuflError(f"its process died {ATTEMPTS} times: {advice}")
        elif not self._pausing:
            self._waiting.appendleft(place)
        if self._waiting:
            self._processes.append(self._process())
            self._next(self._processes[-1])

    def close(self) -> None:
        """Stop all processes at once, even in the middle of a round."""
        for process in self._processes:
            process.close()


def _result(job: Job, kind: str, content: Any) -> Result:
    """What a process says about a run: the run, with the parts of its experiment that this process has."""
    if kind == "done":
        done: Outcome = pickle.loads(content)
        fitted = {"game": done.game, "clients": done.clients, "leader": done.leader}
        return Run(job.experiment.model_copy(update=fitted), **done.run, folder=job.out)
    if kind == "raised":
        message, trace = content
        error = PluginError(message)
        error.__cause__ = RemoteError(trace)
        return error
    name, message, field = content
    known: type[DuflError] = getattr(errors, name, DuflError)
    return known(message, field=field) if issubclass(known, InputError) else known(message)
