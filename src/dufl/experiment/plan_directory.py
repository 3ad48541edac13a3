"""A plan on disk: `plan.json` with the summary, `plan.npz` with all arrays, `config.toml`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dufl.data.datasets.untrusted_files import read_arrays, refusing
from dufl.errors import InputError
from dufl.experiment.config import CLIENTS_FILE, Experiment
from dufl.experiment.files import replacing, to_json, write_text
from dufl.experiment.limits import limit_columns
from dufl.experiment.output import PLAN, Manifest, writing
from dufl.experiment.planning import summary
from dufl.experiment.sections import Leader
from dufl.experiment.stored_config import read_config, read_json
from dufl.game.dynamics import Array
from dufl.game.leader import Trace
from dufl.game.mean_field import Equilibrium
from dufl.game.parameters import Competition, Game
from dufl.game.plan import Method, Offer, Plan
from dufl.game.voluntary import Mask

MANY = 20_000_000  # client-rounds up to which trajectories are written by default
_OFFER = ("payment", "conservation_rate")
_EQUILIBRIUM = (*_OFFER, "announced_volume", "total_volume", "residual", "passes", "converged")
_TRACE = ("trace_payment", "trace_conservation_rate", "trace_cost", "trace_total_volume", "trace_converged")
_MEMBERS = "takes_part"
Figures = Callable[[Path], list[Path]]


@dataclass(frozen=True, eq=False)
class Profile:
    """The trajectories of a stored plan, as input of the certificate.

    Attributes:
        clients: which clients hold data; all, unless participation is voluntary.
        game: the game of these clients.
        offer: (R, θ).
        volume: D_k(t) of these clients.
        collection: Δ_k(t) of these clients.
        competition: `mean-field` or `nash`.
        staying_away: how many clients hold nothing in any round; None if participation is mandatory.
    """

    clients: npt.NDArray[np.intp]
    game: Game
    offer: Offer
    volume: Array
    collection: Array
    competition: Competition
    staying_away: int | None


def write_plan(
    plan: Plan,
    folder: Path,
    experiment: Experiment | None = None,
    *,
    baseline: Plan | None = None,
    trajectories: bool | None = None,
    figures: Figures = lambda _: [],
    force: bool = False,
) -> list[Path]:
    """Write a plan atomically, and return the paths of its files.

    Args:
        plan: the plan.
        folder: the directory to write.
        experiment: the experiment of the plan; by default only the plan's game.
        baseline: Algorithm 1's plan for the same game, whose cost is written too.
        trajectories: write the trajectories of all clients; by default up to `MANY` numbers.
        figures: writes figures to a directory and returns their paths.
        force: write even if the directory holds something else.
    """
    experiment = experiment or Experiment(game=_fixed(plan), leader=_leader(plan))
    with writing(folder, PLAN, force) as staging:
        write_text(staging / "plan.json", to_json(summary(plan, baseline)))
        write_plan_arrays(plan, staging / "plan.npz", trajectories)
        write_text(staging / "config.toml", experiment.to_toml())
        names = ["plan.json", "plan.npz", "config.toml"]
        if experiment.clients.file is not None:
            names.append(CLIENTS_FILE)
            write_text(staging / CLIENTS_FILE, plan.game.clients.to_csv())
        names += [path.name for path in figures(staging)]
    return [folder / name for name in names]


def read_plan(folder: Path) -> Plan:
    """Read a plan that `write_plan` wrote, without solving the game again."""
    manifest = _manifest(folder)
    experiment, facts = read_config(manifest), read_json(manifest, "plan.json")
    method, competition = facts.get("method"), facts.get("competition")
    if method not in ("stackelberg", "algorithm1", "given") or competition not in ("mean-field", "nash"):
        raise InputError(f"{folder / 'plan.json'} must have a known method and competition")
    return read_plan_arrays(manifest, experiment.game, method, competition)


def read_profile(folder: Path) -> Profile:
    """Read the trajectories of a plan that `write_plan` wrote.

    If participation is voluntary, clients that stay away are left out: they hold nothing in any round.
    """
    manifest = _manifest(folder)
    experiment, facts = read_config(manifest), read_json(manifest, "plan.json")
    offer = _offer(folder / "plan.json", facts.get("payment"), facts.get("conservation_rate"))
    path = manifest.check("plan.npz")
    with refusing(path), np.load(path) as arrays:
        if "volume" not in arrays:
            raise InputError(f"{path} must hold trajectories: plan again with --trajectories")
        chosen = _MEMBERS in arrays
    names = ("volume", "collection", *((_MEMBERS,) if chosen else ()))
    volume, collection, *members = read_arrays(path, names, only=False).values()
    game = experiment.game
    shape = (game.num_rounds, game.clients.size)
    for name, values in (("volume", volume), ("collection", collection)):
        _check(f"{name} in {path}", values, shape)
    away = np.full(game.clients.size, game.participation == "voluntary") & ~volume.any(axis=0)
    if members:
        away &= ~_members(members[0], path, game)
    here = np.flatnonzero(~away)
    if away.any() and here.size:
        game = game.replace(clients=game.clients.take(here))
    profile = (volume[:, here], collection[:, here]) if away.any() else (volume, collection)
    number = int(away.sum()) if game.participation == "voluntary" else None
    return Profile(here, game, offer, *profile, experiment.leader.competition, number)


def read_offer(manifest: Manifest) -> Offer:
    """Read the offer of the plan in a result directory."""
    path = manifest.check("plan.npz")
    stored = read_arrays(path, _OFFER, only=False)
    return _offer(path, *(_number(stored, name, path) for name in _OFFER))


def read_plan_arrays(manifest: Manifest, game: Game, method: str, competition: Competition) -> Plan:
    """Read the plan in the `plan.npz` of a result, for the game of the result."""
    path = manifest.check("plan.npz")
    with refusing(path), np.load(path) as arrays:
        traced, chosen = _TRACE[0] in arrays, _MEMBERS in arrays
    names = (*_EQUILIBRIUM, *(_TRACE if traced else ()), *((_MEMBERS,) if chosen else ()))
    stored = read_arrays(path, names, only=False)
    offer = _offer(path, *(_number(stored, name, path) for name in _OFFER))
    for name in ("announced_volume", "total_volume"):
        _check(f"{name} in {path}", stored[name], (game.num_rounds,))
    equilibrium = Equilibrium(
        stored["announced_volume"],
        stored["total_volume"],
        _number(stored, "residual", path),
        int(_number(stored, "passes", path)),
        bool(_number(stored, "converged", path)),
    )
    trace = None
    if traced:
        payment, rate, cost, total = (stored[name] for name in _TRACE[:4])
        _check(f"trace_total_volume in {path}", total, (len(payment) + 1, game.num_rounds))
        trace = Trace(payment, rate, cost, total, bool(_number(stored, _TRACE[4], path)))
    takes_part = _members(stored[_MEMBERS], path, game) if chosen else None
    pair = offer.payment, offer.conservation_rate
    return Plan(game, *pair, equilibrium, competition, method, trace, takes_part=takes_part)


def write_plan_arrays(plan: Plan, path: Path, trajectories: bool | None = None) -> None:
    """Write `plan.npz`, by default with the trajectories of up to `MANY` client-rounds."""
    size = plan.game.num_rounds * plan.game.clients.size
    arrays: dict[str, Any] = {
        "payment": plan.payment,
        "conservation_rate": plan.conservation_rate,
        "total_volume": plan.total_volume,
        "announced_volume": plan.equilibrium.announced_volume,
        "residual": plan.residual,
        "passes": float(plan.passes),
        "converged": float(plan.converged),
        "mean_staleness": plan.mean_staleness,
        "utility": plan.outcomes.utility,
        "collected": plan.outcomes.collected,
        **limit_columns(plan),
    }
    if plan.takes_part is not None:
        arrays[_MEMBERS] = plan.takes_part.astype(np.uint8)
    if trajectories if trajectories is not None else size <= MANY:
        arrays |= {
            "volume": plan.volume,
            "collection": plan.collection,
            "staleness": plan.staleness,
        }
    if plan.trace is not None:
        arrays |= {
            "trace_payment": plan.trace.payment,
            "trace_conservation_rate": plan.trace.conservation_rate,
            "trace_cost": plan.trace.cost,
            "trace_total_volume": plan.trace.total_volume,
            "trace_converged": float(plan.trace.converged),
        }
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def _members(values: npt.NDArray[Any], path: Path, game: Game) -> Mask:
    """Which clients take part, checked; a plan without it is mandatory."""
    name, shape = f"{_MEMBERS} in {path}", (game.clients.size,)
    if game.participation == "mandatory":
        raise InputError.of(name, "left out if participation is 'mandatory'", values.shape)
    if values.dtype != np.uint8 or values.shape != shape or values.max() > 1:
        rule = f"of type uint8 and of shape {shape}, 0 or 1 per client"
        raise InputError.of(name, rule, f"{values.dtype}, {values.shape}")
    return values.astype(np.bool_)


def _leader(plan: Plan) -> Leader:
    method: Method = "algorithm1" if plan.method == "algorithm1" else "stackelberg"
    return Leader(method=method, competition=plan.competition)


def _fixed(plan: Plan) -> Game:
    """The plan's game. For a given offer, its ranges are fixed to the offer."""
    if plan.method != "given":
        return plan.game
    rates = (plan.conservation_rate, plan.conservation_rate)
    return plan.game.replace(payment_range=(plan.payment, plan.payment), conservation_range=rates)


def _manifest(folder: Path) -> Manifest:
    manifest = Manifest.read(folder)
    if manifest is None or manifest.kind != PLAN:
        found = manifest.kind.name if manifest else "something else"
        raise InputError.of(str(folder), "a directory that `dufl plan --out` wrote", found)
    return manifest


def _offer(path: Path, payment: Any, conservation_rate: Any) -> Offer:
    try:
        return Offer(payment=payment, conservation_rate=conservation_rate)
    except InputError as error:
        raise InputError(f"{path}: {error}", field=error.field) from None


def _number(arrays: dict[str, npt.NDArray[Any]], name: str, path: Path) -> float:
    if arrays[name].shape != () or arrays[name].dtype != np.float64:
        got = f"{arrays[name].dtype}, {arrays[name].shape}"
        raise InputError.of(f"{name} in {path}", "one number of type float64", got)
    return float(arrays[name])


def _check(name: str, values: Array, shape: tuple[int, ...]) -> None:
    if values.dtype != np.float64:
        raise InputError.of(name, "of type float64", values.dtype)
    if values.shape != shape:
        rule = f"of shape {shape}, rounds and clients" if len(shape) == 2 else f"of shape {shape}, rounds"
        raise InputError.of(name, rule, values.shape)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise InputError.of(name, "finite numbers >= 0", values[~(np.isfinite(values) & (values >= 0))][0])
