"""Which run a folder belongs to: the configuration that it was begun with, in `run.json`.

A folder belongs to one run of one configuration. An unfinished run is resumed if the configuration is the
same; any other configuration is an error that lists what differs. The file is written before the first
message. The id of the run in it goes to the clients with every message, so that a client never mistakes the
plan of an earlier run for one of this run.

Of the initial model, only names, types and shapes are part of the configuration: an app that does not set a
seed starts with other weights each time, and may still be resumed.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import fields
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from dufl.errors import InputError, shown
from dufl.experiment.config import law_table
from dufl.experiment.files import from_json, to_json, write_text
from dufl.game.clients_file import COLUMNS
from dufl.game.negotiation import Announcement
from dufl.game.parameters import Game

FILE = "run.json"
IfFinished = Literal["error", "new", "return"]
Facts = Mapping[str, Any]
_LONGEST = 100  # numbers in a list; of longer ones, a hash is stored


def identify(folder: Path, facts: Facts) -> str:
    """The id of the run in a folder. A folder without a run gets a new one.

    Raises:
        InputError: if the folder belongs to a run with other facts.
    """
    path = folder / FILE
    if not path.exists():
        if (folder / "deal.json").exists():
            raise InputError.of(str(folder), f"a folder of one run, with its {FILE}", f"one without {FILE}")
        run = secrets.token_hex(8)
        write_text(path, to_json({"id": run, "configuration": dict(facts)}), private=True)
        return run
    known = _read(path)
    before, now = known["configuration"], from_json(to_json(dict(facts)))
    different = [
        f"{key} was {shown(before.get(key))}, is {shown(now.get(key))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if different:
        text = f"{folder} holds a run of another configuration: {'; '.join(different)}"
        raise InputError(f"{text}. A run with another configuration needs another folder", field="folder")
    return str(known["id"])


def _read(path: Path) -> dict[str, Any]:
    try:
        known = from_json(path.read_text(encoding="utf-8"))
        if not isinstance(known["configuration"], dict) or not isinstance(known["id"], str):
            raise TypeError("no id and configuration")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} must be undamaged: {error!r}", field=str(path)) from None
    return dict(known)


def finished_error(folder: Path) -> InputError:
    """The error for a folder whose run is finished."""
    return InputError(
        f"the run in {folder} is finished: for a new run, choose another folder, or if-finished = 'new', "
        f"which takes {next_name(folder, 2).name} and so on",
        field="folder",
    )


def unfinished(folder: Path, is_finished: Callable[[Path], bool]) -> Path:
    """The folder or, if its run is finished, the first of `folder-2`, `folder-3` … whose run is not."""
    return next(each for n in count(1) if not is_finished(each := next_name(folder, n)))


def next_name(folder: Path, number: int) -> Path:
    """The folder of a number: `run`, `run-2`, `run-3` and so on."""
    return folder if number == 1 else folder.with_name(f"{folder.name}-{number}")


def check_if_finished(value: object) -> IfFinished:
    """The value, if it is one that says what to do with a finished run."""
    if value not in ("error", "new", "return"):
        raise InputError.of("if_finished", "'error', 'new' or 'return'", value, text=repr(value))
    return value


def facts_of(strategy: Strategy, game: Game, plan: Announcement | None, **others: Any) -> dict[str, Any]:
    """The configuration of a run, flat.

    Args:
        strategy: the inner strategy: its class, and its public attributes that are numbers or texts.
        game: the server's view.
        plan: a known plan, if there is one.
        others: more facts; a mapping has one fact per key.
    """
    facts = _game_facts(game) | _strategy_facts(strategy, "strategy")
    if plan is not None:
        facts |= {"plan.payment": _few(plan.offer.payment), "plan.trim_start": plan.trim_start}
        facts |= {"plan.conservation_rate": _few(plan.offer.conservation_rate)}
        facts |= {"plan.announced_volume": _plain([_few(v) for v in plan.announced_volume.tolist()])}
    for name, value in others.items():
        parts = {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, Mapping) else None
        facts |= {key: _plain(part) for key, part in (parts or {name: value}).items() if parts != {}}
    return facts


def options_facts(options: Any) -> dict[str, Any]:
    """The fields of a dataclass of options."""
    return {field.name: getattr(options, field.name) for field in fields(options)}


def model_facts(arrays: ArrayRecord) -> dict[str, str]:
    """Type and shape of every array."""
    return {name: f"{array.dtype} {list(array.shape)}" for name, array in arrays.items()}


def _game_facts(game: Game) -> dict[str, Any]:
    names = [name for name in type(game).model_fields if name not in ("clients", "loss")]
    facts = {f"game.{name}": _plain(getattr(game, name)) for name in names}
    facts["game.loss"] = None if game.loss is None else _plain(law_table(game.loss))
    return facts | {f"clients.{name}": _plain(getattr(game.clients, name)) for name in COLUMNS}


def _strategy_facts(strategy: Strategy, name: str) -> dict[str, Any]:
    kind = type(strategy)
    facts: dict[str, Any] = {name: f"{kind.__module__}.{kind.__qualname__}"}
    for key, value in vars(strategy).items():
        if isinstance(value, Strategy):  # one that wraps another
            facts |= _strategy_facts(value, f"{name}.{key}")
        elif not key.startswith("_") and isinstance(value, bool | int | float | str | None):
            facts[f"{name}.{key}"] = value
    return facts


def _few(value: float) -> float:
    """Six digits: a plan that is solved again may differ in the last ones."""
    return float(f"{value:.6g}")


def _plain(value: Any) -> Any:
    """A value that JSON can represent; of long lists and bytes, a hash."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, bytes):
        return f"{len(value)} bytes, sha256 {sha256(value).hexdigest()}"
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
        return _plain(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_plain(part) for part in value]
        if len(parts) > _LONGEST:
            return f"{len(parts)} values, sha256 {sha256(repr(parts).encode()).hexdigest()}"
        return parts
    return _plain(value.model_dump()) if hasattr(value, "model_dump") else f"<{type(value).__qualname__}>"
