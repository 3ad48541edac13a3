"""Mutated inputs for every command: hostile input, typing errors and damaged files."""

import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from command_line import told, write_dataset

TINY = (
    *("game.num_rounds=3", "clients.count=3", "clients.initial_volume=20", "training.local_epochs=1"),
    *("training.workers=1", "training.checkpoint_every=1"),
)
CONFIG = """\
policy = "dufl"
[game]
num_rounds = 3
time_sensitivity = 0.75
payment_range = [0, 500]
conservation_range = [0.0, 1.0]
[clients]
count = 3
initial_volume = 20
collection_cost = { low = 1e-4, high = 1e-3 }
training_cost = [1e-5, 2e-5, 3e-5]
seed = 0
[leader]
method = "stackelberg"
competition = "mean-field"
[data]
dataset = "digits"
noise_scale = 0.5
class_order = "label"
[training]
algorithm = "fedavg"
local_epochs = 1
batch_size = 16
workers = 1
"""
CLIENTS = "initial_volume,collection_cost,training_cost\n10,1e-4,1e-5\n20,2e-4,2e-5\n30,3e-4,3e-5\n"
ODD = (
    *("", "0", "-1", "-0.0", "1.5", "2", "nan", "inf", "-inf", "1e308", "-1e308", "1e-308", "5e-324", "1e50"),
    *("true", "false", "none", "null", "[]", "{}", "[1,2,3]", "[[1],[2]]", "{low=1}", "{low=2,high=1}"),
    *(
        "{median=1,spread=-1}",
        "{median=0,spread=1}",
        '"text"',
        "text",
        '"θ"',
        "θ",
        "é",
        "[0,1",
        "1,2",
        "=",
        "==",
    ),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 400, "7" * 5000),
    *("2026-11-16", "12:00:00", "0x10", "0b1", "1_0", "+1", "1e", ".5", "5.", "1e5000", "\\", '"', "'", "\t"),
    *("a:b", "os:getcwd", "nowhere.module:Name", "builtins:print", "nowhere.npz", "/dev/null", "..", "."),
    *(
        "fedavg",
        "static",
        "voluntary",
        "dufl",
        "nash",
        "mean-field",
        "algorithm1",
        "logistic",
        "label",
        "client",
        "oldest",
    ),
    *(
        "[" * 3000,
        "{a=" * 500,
        "x" * 300,
        "\x00",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ),
)
KEYS = (
    *("game.num_rounds", "game.time_sensitivity", "game.sampling_noise", "game.payment_weight", "game.decay"),
    *("game.volume_weight", "game.staleness_weight", "game.payment_range", "game.conservation_range"),
    *("game.strong_convexity", "game.smoothness", "game.learning_rate", "clients.count", "clients.seed"),
    *("clients.initial_volume", "clients.collection_cost", "clients.training_cost", "clients.capacity"),
    *("clients.collection_price", "clients.training_price", "clients.reservation", "game.participation"),
    *("clients.initial_staleness", "clients.file", "leader.method", "leader.competition", "leader.search"),
    *("leader.evaluations", "leader.max_iterations", "leader.tolerance", "leader.damping", "leader.seed"),
    *("data.dataset", "data.data_dir", "data.noise_scale", "data.noise_growth", "data.initial_classes"),
    *("data.arrival_until", "data.class_order", "data.dirichlet_alpha", "data.discard", "data.stream"),
    *("training.algorithm", "training.loss", "training.metrics"),
    *("training.proximal_mu", "training.feddyn_alpha", "policy", "training.model"),
    *("training.age_weighting", "training.age_scale", "training.client_selection"),
    *("training.batch_size", "training.learning_rate", "training.momentum", "training.fraction_train"),
    *("training.learning_rate_decay", "training.weight_decay", "training.augmentation"),
    *(
        "training.client_dropout",
        "training.precision",
        "training.seed",
        "training.device",
        "training.workers",
    ),
    *("sigma", "N", "σ", "game", "clients.", ".count", "a.b.c", "", "nothing", "training.local_epochs", "θ"),
)
LONG = re.compile(rb"(num_rounds|count|epochs|evaluations|max_iterations|workers)\s*=\s*[0-9_]{2,7}\b")


@dataclass(frozen=True)
class Corpus:
    """Valid inputs to mutate: a plan, a finished run, an interrupted run, and files."""

    folder: Path

    @staticmethod
    def make(folder: Path, command: Callable[..., tuple[int, str, str]]) -> "Corpus":
        """Write the inputs with the commands themselves."""
        (folder / "config.toml").write_text(CONFIG)
        (folder / "clients.csv").write_text(CLIENTS)
        write_dataset(folder / "own.npz")
        for arguments in (
            ("plan", *told(*TINY), "--out", str(folder / "plan")),
            ("train", *told(*TINY), "--out", str(folder / "run")),
            ("train", *told(*TINY, "game.num_rounds=4", "policy=static"), "--out", str(folder / "stopped")),
        ):
            code, _, err = command(*arguments)
            assert code == 0, err
        for name in ("summary.json", "model.safetensors", "report.html", "training.png"):
            (folder / "stopped" / name).unlink(missing_ok=True)
        from dufl.flower.ledger import Ledger

        with Ledger(folder / "ledger.sqlite"):
            pass
        return Corpus(folder)


@dataclass(frozen=True)
class Case:
    """A command with a mutated input."""

    arguments: tuple[str, ...]
    stdin: str = ""


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one to three mutations."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        data = chance.choice(_MUTATIONS)(data, chance)
    return LONG.sub(rb"\1 = 3", data)  # valid, but would take minutes


def _flip(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return b"\x00"
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]


def _truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _cut(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start + chance.randrange(1, 40) :]


def _insert(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.choice(ODD).encode("utf-8", "surrogateescape") + data[place:]


def _repeat(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    stop = start + chance.randrange(1, 80)
    return data[:stop] + data[start:stop] + data[stop:]


def _another_value(data: bytes, chance: random.Random) -> bytes:
    """Replace one number or string of a text file by an odd value."""
    values = list(re.finditer(rb'(?<![\w.])(-?\d[\w.+-]*|"[^"\n]*")', data[:100_000]))
    if not values:
        return _flip(data, chance)
    value = chance.choice(values)
    odd = chance.choice(ODD).encode("utf-8", "surrogateescape")
    return data[: value.start()] + odd + data[value.end() :]


_MUTATIONS = (_flip, _truncate, _cut, _insert, _repeat, _another_value, _another_value)


def case(corpus: Corpus, place: Path, seed: int) -> Case:
    """The case of a seed, with its files in `place`."""
    chance = random.Random(seed)
    kind = chance.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
    return kind(corpus, place, chance)


def _copy(corpus: Corpus, name: str, place: Path) -> Path:
    source, target = corpus.folder / name, place / name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target


def _mutated_file(corpus: Corpus, name: str, place: Path, chance: random.Random) -> Path:
    path = _copy(corpus, name, place)
    path.write_bytes(mutated(path.read_bytes(), chance))
    return path


def _mutated_folder(corpus: Corpus, name: str, place: Path, chance: random.Random) -> Path:
    """A copy of a folder with one file mutated, removed, emptied or replaced by another."""
    folder = _copy(corpus, name, place)
    files = sorted(path for path in folder.iterdir() if path.suffix not in (".png", ".svg", ".pdf", ".html"))
    victim, other = chance.choice(files), chance.choice(files)
    fate = chance.random()
    if fate < 0.8:
        victim.write_bytes(mutated(victim.read_bytes(), chance))
    elif fate < 0.9:
        victim.unlink()
    elif victim != other:
        victim.write_bytes(other.read_bytes())
    return folder


def _odd_changes(chance: random.Random, number: int) -> list[str]:
    changes = []
    for _ in range(number):
        key, value = chance.choice(KEYS), chance.choice(ODD)
        changes.append(
            LONG.sub(rb"\1=3", f"{key}={value}".encode(errors="surrogateescape")).decode("utf-8", "replace")
        )
    return told(*changes)


def _plan_of_a_file(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    return Case(("plan", str(_mutated_file(corpus, "config.toml", place, chance)), "--json"))


def _plan_with_changes(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    return Case(("plan", *told(*TINY), *_odd_changes(chance, chance.choice((1, 1, 2)))))


def _plan_of_clients(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    path = _mutated_file(corpus, "clients.csv", place, chance)
    return Case(("plan", "--json", *told("num_rounds=3", f"clients.file={path}")))


def _certify(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    return Case(
        ("certify", str(_mutated_folder(corpus, chance.choice(("plan", "plan", "run")), place, chance)))
    )


def _certify_arrays(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    """A plan with an array of another type or shape, in an undamaged file."""
    folder = _copy(corpus, "plan", place)
    with np.load(folder / "plan.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    name = chance.choice(sorted(arrays))
    odd = (
        arrays[name].astype(complex),
        arrays[name].astype(str),
        np.zeros(3, dtype=[("a", int)]),
        np.array(["2026"], "datetime64[D]"),
        np.full_like(arrays[name], np.nan, dtype=float),
        np.full(arrays[name].shape, -1),
        arrays[name].reshape(-1)[:1],
        np.array(3),
        np.empty((0, 0)),
    )
    np.savez(folder / "plan.npz", **arrays | {name: chance.choice(odd)})
    return Case(("certify", str(folder)))


def _report(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    folder = _mutated_folder(corpus, chance.choice(("run", "stopped")), place, chance)
    return Case(("report", str(folder), "--out", str(place / "page.html")))


def _resume(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    folder = _mutated_folder(corpus, chance.choice(("run", "stopped", "stopped")), place, chance)
    return Case(("train", "--resume", "--out", str(folder), *told("workers=1")))


def _train_with_changes(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    return Case(("train", "--json", *told(*TINY), *_odd_changes(chance, 1)))


def _train_on_a_file(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    path = _mutated_file(corpus, "own.npz", place, chance)
    return Case(("train", "--json", *told(*TINY, f"dataset={path}")))


def _show_data(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    return Case(("data", "show", str(_mutated_file(corpus, "own.npz", place, chance))))


def _sweep(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    values = [value for value in (chance.choice(ODD) for _ in range(2)) if len(value) < 3]
    return Case(("sweep", f"{chance.choice(KEYS)}={','.join(values)}", *told(*TINY)))


def _compare(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    option = chance.choice(("--algorithms", "--policies", "--seeds"))
    value = chance.choice([odd for odd in ODD if odd not in ("2", "fedavg", "static", "dufl")])
    return Case(("compare", option, value, *told(*TINY, "game.num_rounds=2")))


def _ledger(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    path = _copy(corpus, "ledger.sqlite", place)
    if chance.random() < 0.5:
        path.write_bytes(mutated(path.read_bytes(), chance))
    else:
        with sqlite3.connect(path) as ledger:
            tables = [row[0] for row in ledger.execute("select name from sqlite_master where type='table'")]
            ledger.execute(f"drop table {chance.choice(tables)}")
    return Case(("ledger", chance.choice(("show", "verify")), str(path)))


def _odd_paths(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    path = chance.choice(
        ("", "x" * 300, "\udcff", "[/x]", "/dev/null", "/dev/full", "/proc/x", "nowhere/x", ".")
    )
    command = chance.choice(
        (
            ("plan", *told(*TINY), "--out", path),
            ("train", *told(*TINY), "--out", path),
            ("compare", *told(*TINY), "--out", path),
            ("report", path),
            ("report", str(corpus.folder / "run"), "--out", path),
            ("certify", path),
            ("ledger", "show", path),
            ("plan", path),
            ("init", path),
            ("explore", path, "--no-browser", "--port", "1"),
            ("data", "list", "--data-dir", path),
            ("reproduce", "nothing", "--out", path),
            ("flower", "new", path, "--data", str(place / "data")),
        )
    )
    return Case(command)


def _odd_options(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    value = chance.choice([odd for odd in ODD if "\0" not in odd])  # arguments cannot contain NUL
    command = chance.choice(
        (
            ("plan", *told(*TINY), "--payment", value),
            ("plan", *told(*TINY), "--conservation-rate", value),
            ("certify", str(corpus.folder / "plan"), "--tolerance", value),
            ("train", *told(*TINY), "--payment", value),
            ("reproduce", value),
            ("reproduce", "table", "--scale", value),
            ("reproduce", "table", "--only", value if value not in ("fedavg", "static", "dufl") else "x"),
            ("data", "show", value),
            ("data", "fetch", f"{value}?"),
            ("flower", "rehearse", "--draws", f"-{value}"),
            (value,),
            ("plan", f"--{value}"),
            ("explore", "--port", f"{value}x"),
        )
    )
    return Case(command)


def _new_app(corpus: Corpus, place: Path, chance: random.Random) -> Case:
    path = _mutated_file(corpus, "config.toml", place, chance)
    data = str(place / "data")
    return Case(("flower", "new", str(place / "app"), "--config", str(path), "--data", data))


_KINDS: dict[Callable[[Corpus, Path, random.Random], Case], int] = {
    _plan_of_a_file: 20,
    _plan_with_changes: 20,
    _plan_of_clients: 8,
    _certify: 10,
    _certify_arrays: 3,
    _report: 8,
    _resume: 8,
    _train_with_changes: 6,
    _train_on_a_file: 5,
    _show_data: 4,
    _sweep: 4,
    _compare: 3,
    _ledger: 4,
    _odd_paths: 5,
    _odd_options: 5,
    _new_app: 3,
}
