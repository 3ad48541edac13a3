"""All items by name, run one after the other; a finished one is not run again."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dufl.errors import InputError
from dufl.experiment.files import to_json, write_text
from dufl.inputs import unknown_key
from dufl.reproduce import clients, convergence, sensitivity, server, table, updates
from dufl.reproduce.item import Advance, Item, Scale

ITEMS: dict[str, Callable[..., Item]] = {
    "convergence": convergence.reproduce,
    "clients": clients.reproduce,
    "sensitivity": sensitivity.reproduce,
    "server": server.reproduce,
    "updates": updates.reproduce,
    "table": table.reproduce,
}
TRAINED = {"server", "table"}  # items that take changes of the configuration


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
    changes: tuple[str, ...] = (),
    begin: Callable[[str], Advance] = lambda _: lambda _: None,
) -> dict[str, dict[str, Any]]:
    """Run items and write reproduction.json after each; what is there of the same scale is kept."""
    path = out / "reproduction.json"
    done = _read(path)
    key = {"scale": scale.name, "changes": list(changes)}
    for name in chosen(names):
        if done.get(name, {}).get("run") == key:
            continue
        began, advance = time.perf_counter(), begin(name)
        more = (changes,) if name in TRAINED else ()
        item = ITEMS[name](scale, out, advance, *more)
        done[name] = item.to_dict() | {"run": key, "seconds": time.perf_counter() - began}
        write_text(path, to_json(done))
    return {name: done[name] for name in ITEMS if name in done}


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as fault:
        raise InputError(f"{path} must be what a reproduction wrote: {fault}") from None
