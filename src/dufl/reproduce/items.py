"""All items by name, run one after the other; a finished one is not run again."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dufl.errors import InputError
from dufl.experiment.config import load
from dufl.experiment.files import to_json, write_text
from dufl.inputs import unknown_key
from dufl.reproduce import clients, convergence, leaders, sensitivity, server, table, updates
from dufl.reproduce.item import Advance, Item, Scale, unwatched

ITEMS: dict[str, Callable[..., Item]] = {
    "convergence": convergence.reproduce,
    "clients": clients.reproduce,
    "sensitivity": sensitivity.reproduce,
    "server": server.reproduce,
    "updates": updates.reproduce,
    "table": table.reproduce,
    "leaders": leaders.reproduce,
}
TRAINED = {"server", "table", "leaders"}  # items that take changes of the configuration


def chosen(names: Sequence[str]) -> list[str]:
    """The items that were asked for; all if none was."""
    for name in names:
        if name not in (*ITEMS, "all"):
            raise InputError(unknown_key(name, dict.fromkeys([*ITEMS, "all"]), " (an item)"))
    return list(ITEMS) if not names or "all" in names else list(dict.fromkeys(names))


def reproduce(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    changes: Sequence[str] = (),
    only: Sequence[str] = (),
    begin: Callable[[str], Advance] = lambda _: unwatched,
) -> dict[str, dict[str, Any]]:
    """Run items and write reproduction.json after each; what is there and was run likewise is kept.

    Args:
        names: of items; none is all.
        scale: how large.
        out: where everything goes.
        changes: `section.key=value`, of the configuration of trained items.
        only: which cells of the table; see `table.cells`.
        begin: called with the name of an item, for a function that is told how far it has come.
    """
    table.cells(scale, only)  # a wrong name is met before hours of work
    load(None, changes)
    path = out / "reproduction.json"
    done = _read(path)
    for name in chosen(names):
        told: dict[str, Sequence[str]] = {"changes": changes} if name in TRAINED else {}
        if name == "table":
            told["only"] = only
        key = {"scale": scale.name} | {option: list(values) for option, values in told.items()}
        if done.get(name, {}).get("run") == key:
            continue
        began, advance = time.perf_counter(), begin(name)
        item = ITEMS[name](scale, out, advance, **told)
        took = item.seconds or time.perf_counter() - began
        done[name] = item.to_dict() | {"run": key, "seconds": took}
        write_text(path, to_json(done))
    return {name: done[name] for name in ITEMS if name in done}


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as fault:
        raise InputError(f"{path} must be what a reproduction wrote: {fault}") from None
