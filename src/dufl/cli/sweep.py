"""`dufl sweep`: how the plan moves when one value of the configuration does."""

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dufl.cli.common import Changes, File, Force, Json, Out, console, progress_bar
from dufl.errors import InputError

if TYPE_CHECKING:
    from dufl.experiment.config import Config

Axis = Annotated[
    str,
    typer.Argument(metavar="KEY=V1,V2,…", help="What varies, e.g. game.time_sensitivity=0.2,0.41,0.75,1.25"),
]
Seeds = Annotated[int, typer.Option(min=1, help="Draws of the clients: seeds 0 to this, less one.")]


def sweep(
    axis: Axis,
    file: File = None,
    changes: Changes = None,
    seeds: Seeds = 1,
    out: Out = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Plan for each of several values, with both leaders, and compare.

    Shown are the two leaders' payment, conservation rate and cost, what the anticipating one saves,
    and what a client could gain if it knew its influence on the total.
    """
    from dufl.experiment.files import to_json, write_text
    from dufl.experiment.output import SWEEP, check_output, writing

    key, values = _axis(axis)
    if seeds > 1 and key == "clients.seed":
        raise InputError.of("--seeds", "left out when clients.seed varies", seeds)
    if out:
        check_output(out, SWEEP, force)
    rows = []
    with progress_bar() as begin:
        advance = begin(f"sweeping {key}")
        total = len(values) * seeds
        for value in values:
            for seed in range(seeds):
                drawn = [f"clients.seed={seed}"] if seeds > 1 else []
                rows.append(_row(file, [*(changes or []), f"{key}={value}", *drawn], value, seed))
                advance(len(rows) / total)
    from dufl.report.sweep_table import sweep_csv, sweep_figure, sweep_table

    if out:
        with writing(out, SWEEP, force) as folder:
            write_text(folder / "sweep.csv", sweep_csv(key, rows))
            sweep_figure(key, rows, folder)
    if json:
        typer.echo(to_json({"key": key, "rows": rows}), nl=False)
        return
    console(200).print(sweep_table(key, rows))
    if out:
        typer.echo(f"written: {out}/sweep.csv, {out}/sweep.png, {out}/sweep.svg")


def _axis(axis: str) -> tuple[str, list[str]]:
    key, equals, text = axis.partition("=")
    parts = re.split(r",(?![^\[{]*[\]}])", text)  # not at a comma inside a list or a table
    values = [part.strip() for part in parts if part.strip()]
    if not equals or not values:
        raise InputError.of("the axis", "KEY=V1,V2,…", repr(axis))
    return key.strip(), values


def _row(file: Any, changes: list[str], value: str, seed: int) -> dict[str, Any]:
    from dufl.experiment.config import load
    from dufl.game.plan import algorithm1_rival, certify, solve

    config: Config = load(file, changes)
    best = solve(config.game, competition=config.leader.competition)
    paper = algorithm1_rival(config.game, config.leader.competition)
    return {
        "value": value,
        "seed": seed,
        "payment": best.payment,
        "conservation_rate": best.conservation_rate,
        "server_cost": best.server_cost,
        "algorithm1_payment": paper.payment if paper else None,
        "algorithm1_conservation_rate": paper.conservation_rate if paper else None,
        "algorithm1_cost": paper.server_cost if paper else None,
        "no_update_cost": best.no_update_cost,
        "influence_gain": certify(best).influence,
    }
