"""All items by name. They run one after the other; finished items are not repeated."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dufl.errors import InputError
from dufl.experiment.config import Changes, Experiment
from dufl.experiment.files import to_json, write_text
from dufl.experiment.keys import split_key
from dufl.experiment.output import REPRODUCTION, claim
from dufl.inputs import unknown_key
from dufl.reproduce import (
    figure_clients,
    figure_convergence,
    figure_sensitivity,
    figure_server,
    figure_updates,
    leaders,
    table1,
)
from dufl.reproduce.item import NO_CHANGES, Advance, Item, Scale, unwatched
from dufl.reproduce.runs import of_the_setting

ITEMS: dict[str, Callable[..., Item]] = {
    "convergence": figure_convergence.reproduce,
    "clients": figure_clients.reproduce,
    "sensitivity": figure_sensitivity.reproduce,
    "server": figure_server.reproduce,
    "updates": figure_updates.reproduce,
    "table": table1.reproduce,
    "leaders": leaders.reproduce,
}
TRAINED = {  # items that accept changes to the configuration, with the keys that they set themselves
    "server": figure_server.FIXED,
    "table": table1.FIXED,
    "leaders": leaders.FIXED,
}
_PARTS = {"claims", "settings", "files", "notes", "run", "seconds"}  # of a finished item


def chosen(names: Sequence[str]) -> list[str]:
    """The named items; all items if no name is given."""
    for name in names:
        if name not in (*ITEMS, "all"):
            raise InputError(unknown_key(name, dict.fromkeys([*ITEMS, "all"]), " (an item)"))
    return list(ITEMS) if not names or "all" in names else list(dict.fromkeys(names))


def reproduce(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    changes: Changes = NO_CHANGES,
    only: Sequence[str] = (),
    begin: Callable[[str], Advance] = lambda _: unwatched,
    force: bool = False,
) -> dict[str, dict[str, Any]]:
    """Run items and write reproduction.json after each; finished items with the same inputs are kept.

    Args:
        names: of items; all items if empty.
        scale: the scale of the reproduction.
        out: the output directory.
        changes: changes to the experiments of trained items, by key.
        only: the cells of the table to train; see `table1.cells`.
        begin: called with the name of an item; returns the callback for its progress.
        force: write even if the directory contains something else.
    """
    wanted = chosen(names)
    needed = _needed(wanted, scale, changes, only)  # raises before hours of work
    path = out / "reproduction.json"
    done = _read(path)
    keys = {name: _key(name, scale, changes, only, needed) for name in wanted}
    due = [name for name in wanted if done.get(name, {}).get("run") != keys[name]]
    _check_data({dataset for name in due for dataset in needed.get(name, ())}, changes)
    claim(out, REPRODUCTION, force)
    for name in due:
        arguments: dict[str, Any] = {"changes": changes} if name in TRAINED else {}
        if name == "table":
            arguments["only"] = only
        began, advance = time.perf_counter(), begin(name)
        item = ITEMS[name](scale, out, advance, **arguments)
        took = item.seconds or time.perf_counter() - began
        done[name] = item.to_dict() | {"run": keys[name], "seconds": took}
        write_text(path, to_json(done))
    return {name: done[name] for name in ITEMS if name in done}


def _needed(
    wanted: Sequence[str], scale: Scale, changes: Changes, only: Sequence[str]
) -> dict[str, list[str]]:
    """The datasets of each trained item; raises `InputError` for invalid names and changes."""
    data_dir = Experiment.from_toml(changes=changes).data.data_dir
    cells = table1.cells(scale, only, data_dir)
    trained = [name for name in wanted if name in TRAINED]
    if changes and not trained:
        raise InputError.of("changes", f"for an item that is trained ({', '.join(TRAINED)})", "none of them")
    if only and "table" not in wanted:
        raise InputError.of("only", "for the table, whose cells it chooses", ", ".join(wanted))
    for name in trained:
        for change, value in changes.items():
            key = ".".join(filter(None, split_key(change)))
            if key in TRAINED[name]:
                rule = f"without {key}, which the item {name} sets itself"
                raise InputError.of("changes", rule, f"{change}={value}")
    every = {
        "server": [scale.images, scale.leaders],
        "table": list(dict.fromkeys(cell.dataset for cell in cells)),
        "leaders": [scale.leaders],
    }
    return {name: every[name] for name in trained}


def _key(
    name: str, scale: Scale, changes: Changes, only: Sequence[str], needed: dict[str, list[str]]
) -> dict[str, Any]:
    """The inputs of an item; an item with the same inputs is not repeated."""
    key: dict[str, Any] = {"scale": scale.name}
    if name in TRAINED:
        key["changes"] = of_the_setting(changes)
    if name == "table":
        key |= {"only": list(only), "datasets": needed[name]}
    return key


def _check_data(datasets: Iterable[str], changes: Changes) -> None:
    """Load every dataset once, so that a missing or damaged one is reported before any training."""
    for dataset in sorted(datasets):
        Experiment.from_toml(changes={"data.dataset": dataset, **changes}).data.load()


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        done = dict(json.loads(path.read_text(encoding="utf-8")))
        lacking = [name for name, item in done.items() if not dict(item).keys() >= _PARTS]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} must be a file that a reproduction wrote: {error}") from None
    if lacking:
        names = ", ".join(lacking)
        raise InputError(f"{path} must be a file that a reproduction wrote: {names} is incomplete")
    return done
