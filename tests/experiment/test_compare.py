"""Comparisons: names of a grid, runs in this process and in others, failures, and what processes share."""

import os
import re
import signal
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest

import dufl
from command_line import SMALL
from dufl.cores import cores
from dufl.errors import InputError, PluginError
from dufl.experiment.compare import compare, grid, named
from dufl.experiment.comparison import Comparison
from dufl.experiment.config import Experiment
from dufl.experiment.runs import WORTH, Job, Options, choose_processes
from dufl.experiment.train import Run
from loading import load

EXPERIMENT = load(None, SMALL)


class Half:
    """A policy: every buffer keeps half and collects ten samples."""

    def __init__(self, game: Any, seed: int) -> None:
        self.seed = seed

    def payment(self, round: int) -> float:
        return 3.0

    def size(self, client: int) -> int:
        return 20

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        return size // 2, 10

    def planned_staleness(self, round: int) -> float:
        return 1.5


class FailsOnce(Half):
    """Raises with one of the seeds."""

    def step(self, client: int, round: int, size: int) -> tuple[int, int]:
        if self.seed == 1 and round == 2:
            raise RuntimeError("seed 1")
        return super().step(client, round, size)


def results(comparison: Comparison) -> dict[str, list[dict[str, Any]]]:
    """Everything that does not depend on the clock."""
    return {cell.name: [_result(run) for run in cell.runs] for cell in comparison.cells}


def _result(run: Run) -> dict[str, Any]:
    return {
        "records": [replace(record, seconds=0.0) for record in run.records],
        "weights": {name: values.tobytes() for name, values in run.weights.items()},
        "experiment": run.experiment.to_toml(),
        "plan": None if run.plan is None else (run.plan.payment, run.plan.volume.tobytes()),
        "summary": run.summary() | {"seconds": 0.0},
        "held": run.held,
        "data": run.data,
    }


def test_names_of_algorithms_and_policies_stay() -> None:
    """Directories of earlier comparisons are resumed."""
    assert list(grid(EXPERIMENT, ["fedavg", "feddyn"], ["static", Half])) == [
        *("fedavg-static", f"fedavg-{__name__}.Half", "feddyn-static", f"feddyn-{__name__}.Half")
    ]
    assert list(grid(EXPERIMENT, discards=["oldest"], datasets=["digits"])) == [
        "fedavg-static",
        "fedavg-dufl",
    ]


def test_a_grid_has_every_combination_once() -> None:
    made = grid(EXPERIMENT, ["fedavg", "feddyn"], ["dufl"], ["uniform", "oldest"], ["digits", "weather"])
    values = {
        name: (one.data.dataset, one.training.algorithm, one.policy, one.data.discard)
        for name, one in made.items()
    }
    assert len(made) == len(set(values.values())) == 8
    for name, (dataset, algorithm, policy, discard) in values.items():
        assert name == f"{dataset}/{algorithm}-{policy}-{discard}"
    files = {"a": EXPERIMENT, "b": EXPERIMENT}
    several = grid(files, datasets=["digits", "weather"], policies=["dufl"])
    assert list(several) == [f"{file}-{data}/fedavg-dufl" for file in "ab" for data in ("digits", "weather")]
    assert list(grid({"a": EXPERIMENT, "b": EXPERIMENT}, policies=["dufl"])) == [
        "a/fedavg-dufl",
        "b/fedavg-dufl",
    ]


def test_experiments_of_a_list_are_named_by_what_differs() -> None:
    other = EXPERIMENT.replace(data=dufl.Data("weather"))
    assert list(named([EXPERIMENT, other])) == ["digits/fedavg-dufl", "weather/fedavg-dufl"]
    with pytest.raises(InputError) as refused:
        named([EXPERIMENT, EXPERIMENT])
    assert refused.value.field == "experiments"
    with pytest.raises(InputError) as refused:
        compare({"a/b": EXPERIMENT, "a-b": EXPERIMENT})  # one directory for both
    assert refused.value.field == "experiments"


def test_a_name_says_what_is_compared_on_what() -> None:
    cells = compare({"x/mine": EXPERIMENT, "yours": EXPERIMENT}, jobs=1).cells
    assert [(cell.problem, cell.method) for cell in cells] == [("x", "mine"), ("digits", "yours")]


@pytest.mark.parametrize(("field", "value"), [("baseline", "fedsgd"), ("jobs", 0), ("jobs", -1)])
def test_a_wrong_argument_is_found_before_any_run(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(InputError) as refused:
        compare(EXPERIMENT, out=tmp_path / "out", **{field: value})
    assert refused.value.field == field
    assert not (tmp_path / "out").exists()


def test_runs_in_other_processes_are_the_same(tmp_path: Path) -> None:
    """Bit for bit, also with classes that cannot be imported, and on recorded data that fits its clients."""

    class Local(Half):
        def payment(self, round: int) -> float:
            return 4.0

    experiments = grid(EXPERIMENT, policies=["static", "dufl", Local, Half]) | {
        "weather": EXPERIMENT.replace(data=dufl.Data("weather"))
    }
    one = compare(experiments, seeds=2, jobs=1)
    two = compare(experiments, seeds=2, jobs=2, out=tmp_path / "two")
    assert one.finished
    assert two.finished
    assert results(one) == results(two)
    assert two["fedavg-Local"].experiment.policy is Local
    for cell in two.cells:
        for run in cell.runs:
            assert run.folder is not None
            assert _result(Run.load(run.folder))["records"] == _result(run)["records"]


def test_models_in_torch_are_the_same_in_other_processes() -> None:
    """Their worker processes are then started by another process."""
    pytest.importorskip("torch")
    short = EXPERIMENT.replace(game=EXPERIMENT.game.replace(num_rounds=2), model="cnn", device="cpu")
    experiments = {"static": short.replace(policy="static")}
    one, two = (compare(experiments, seeds=2, jobs=jobs) for jobs in (1, 2))
    assert results(one) == results(two)


def test_a_run_that_cannot_be_sent_stays_here() -> None:
    class Locked(Half):
        def __init__(self) -> None:
            self.lock = Lock()

    experiments = {
        "locked": EXPERIMENT.replace(policy=Locked()),
        "static": EXPERIMENT.replace(policy="static"),
    }
    with pytest.warns(RuntimeWarning, match=r"one after the other.*cannot be sent.*pickle"):
        here = compare(experiments, seeds=2, jobs=2)
    assert results(here) == results(compare(experiments, seeds=2, jobs=1))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failure_loses_no_other_run(jobs: int) -> None:
    experiments = grid(EXPERIMENT, policies=["static", FailsOnce])
    with pytest.warns(RuntimeWarning, match="seed 1"):
        comparison = compare(experiments, seeds=3, jobs=jobs)
    name = f"fedavg-{__name__}.FailsOnce"
    assert list(comparison.failures) == [f"{name}-1"]
    error = comparison.failures[f"{name}-1"]
    assert isinstance(error, PluginError)
    assert "RuntimeError: seed 1" in str(error)
    assert error.__cause__ is not None
    assert not comparison.finished
    assert f"{name}-1 failed" in repr(comparison)
    assert [run.experiment.training.seed for run in comparison[name].runs] == [0, 2]
    row = comparison.results().rows[1]
    assert (row.seeds, row.pairs) == ((0, 2), 2)
    assert comparison.statistics().pairs.tolist() == [0, 2]


@pytest.mark.parametrize("jobs", [1, 2])
def test_if_all_runs_fail_there_is_nothing_to_return(jobs: int) -> None:
    with pytest.raises(PluginError, match="seed 1"):
        compare({"own": EXPERIMENT.replace(policy=FailsOnce), "two": EXPERIMENT.replace(policy=FailsOnce)},
                seeds=[1], jobs=jobs)  # fmt: skip
    with pytest.raises(InputError) as refused:
        compare(EXPERIMENT.replace(data=dufl.Data("nowhere.npz")), jobs=jobs)
    assert "nowhere.npz" in str(refused.value)


def _digits_of(log: Path, marker: Path | None = None) -> Callable[[], Any]:
    """A dataset function that writes down who loads it; the first process that does is killed."""

    def digits() -> Any:
        with log.open("a") as stream:
            stream.write(f"{os.getpid()} {cores()} {os.environ.get('OMP_NUM_THREADS')}\n")
        if marker is not None and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        dataset = dufl.Data("digits").load()
        return dataset.train.features, dataset.train.labels, dataset.test.features, dataset.test.labels  # type: ignore[union-attr]

    return digits


def test_a_process_loads_a_dataset_once_and_has_a_share_of_the_cores(tmp_path: Path) -> None:
    log = tmp_path / "log"
    experiment = EXPERIMENT.replace(data=dufl.Data(_digits_of(log)))
    assert compare(experiment, seeds=3, jobs=2).finished
    lines = [line.split() for line in log.read_text().splitlines()]
    assert str(os.getpid()) not in {pid for pid, *_ in lines}
    assert set(Counter(pid for pid, *_ in lines).values()) == {1}
    assert len(lines) == 2
    share = max(1, (os.cpu_count() or 1) // 2)
    assert {tuple(rest) for _, *rest in lines} == {(str(share), "1")}
    log.unlink()
    assert compare(experiment, seeds=3, jobs=1).finished
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_process_that_dies_is_replaced(tmp_path: Path, on_disk: bool) -> None:
    log, out = tmp_path / "log", tmp_path / "out" if on_disk else None
    experiment = EXPERIMENT.replace(data=dufl.Data(_digits_of(log, tmp_path / "marker")))
    killed = compare(experiment, seeds=2, jobs=2, out=out)
    assert killed.finished
    pids = [line.split()[0] for line in log.read_text().splitlines()]
    assert len(pids) == len(set(pids)) == 3
    assert results(killed) == results(compare(experiment, seeds=2, jobs=1))


def test_a_process_that_always_dies_is_a_failure() -> None:
    class Deadly(Half):
        def step(self, client: int, round: int, size: int) -> tuple[int, int]:
            os.kill(os.getpid(), signal.SIGKILL)
            return 0, 0

    experiments = {"deadly": EXPERIMENT.replace(policy=Deadly), "static": EXPERIMENT.replace(policy="static")}
    with pytest.warns(RuntimeWarning, match="died 3 times"):
        comparison = compare(experiments, jobs=2)
    assert list(comparison.failures) == ["deadly-0"]
    assert comparison["static"].finished


def test_callbacks_are_called_in_this_process() -> None:
    seen: list[int] = []
    compare(EXPERIMENT, seeds=2, callbacks=[lambda record: seen.append(record.round)])
    assert Counter(seen) == dict.fromkeys(range(5), 4)
    with pytest.raises(InputError) as refused:
        compare(EXPERIMENT, seeds=2, jobs=2, callbacks=[lambda record: None])
    assert refused.value.field == "jobs"


def test_finished_runs_are_read_and_others_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = compare(EXPERIMENT, seeds=2, jobs=2, out=out)
    before = {path: path.read_bytes() for path in out.rglob("summary.json")}
    assert len(before) == 4
    whole = compare(EXPERIMENT, seeds=3, jobs=2, out=out, resume=True)
    assert {path: path.read_bytes() for path in before} == before  # with the seconds that they took then
    assert whole.finished
    for name, runs in results(first).items():
        again = results(whole)[name]
        assert len(again) == 3
        assert [run["records"] for run in again[:2]] == [run["records"] for run in runs]
        assert [run["weights"] for run in again[:2]] == [run["weights"] for run in runs]


def test_processes_are_chosen_if_they_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUFL_CORES", "4")

    def chosen(runs: int, seconds: float = WORTH, **training: Any) -> int:
        one = EXPERIMENT.replace(**training) if training else EXPERIMENT
        jobs = [Job(f"{n}", 0, n, one, None) for n in range(runs)]
        return choose_processes(jobs, Options(), seconds)

    assert chosen(4) == chosen(40) == 4
    assert chosen(3) == 1  # fewer runs than cores
    assert chosen(40, seconds=WORTH / 50) == 1  # it is over soon
    assert chosen(40, workers=2) == 2  # each run has two threads
    assert chosen(40, model="cnn") == 1  # it has processes of its own
    watched = Options(callbacks=[lambda record: None])
    assert choose_processes([Job("", 0, 0, EXPERIMENT, None)] * 9, watched, WORTH) == 1


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_nonsensical_share_is_the_machine(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DUFL_CORES", text)
    assert cores() == (os.cpu_count() or 1)


def test_statistics_of_a_comparison_as_a_frame() -> None:
    comparison = compare(EXPERIMENT, seeds=6)
    frame = comparison.statistics()
    for cell, (_, row) in zip(comparison.cells, frame.iterrows(), strict=True):
        scores = [run.accuracy for run in cell.runs]
        assert row["mean"] == pytest.approx(np.mean(scores))
        assert row["std"] == pytest.approx(np.std(scores, ddof=1))
        assert row["low"] <= row["mean"] <= row["high"]
    assert comparison.statistics("dufl").baseline[0] == "fedavg-dufl"
    assert re.search(r"\\begin\{tabular\}", comparison.to_latex())
    with pytest.raises(InputError):
        comparison.plot_ranks()


def test_nothing_is_said_if_nothing_failed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        experiments: dict[str, Experiment] = {"one": EXPERIMENT}
        assert not compare(experiments, jobs=3).failures
