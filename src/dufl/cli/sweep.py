"""`dufl sweep`: how the plan moves when one value of the configuration does."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dufl.cli.common import Changes, Force, Json, Out, console, progress_bar
from dufl.cli.plan import Payment, Rate
from dufl.errors import InputError

if TYPE_CHECKING:
    from dufl.experiment.config import Config


def _file(path: Path | None) -> Path | None:
    """Say it where a second axis was meant."""
    if path is not None and "=" in path.name and not path.exists():
        raise InputError(
            f"a sweep must have one axis, got {path} as well: sweep it on its own, or fix its key with --set"
        )
    return path


File = Annotated[
    Path | None,
    typer.Argument(
        help="The TOML file; without one, the paper's defaults.", show_default=False, callback=_file
    ),
]
Axis = Annotated[
    str,
    typer.Argument(metavar="KEY=V1,V2,…", help="What varies, e.g. game.time_sensitivity=0.2,0.41,0.75,1.25"),
]
Seeds = Annotated[
    int, typer.Option(min=1, max=100_000, help="Draws of the clients: seeds 0 to this, less one.")
]


def sweep(
    axis: Axis,
    file: File = None,
    changes: Changes = None,
    payment: Payment = None,
    conservation_rate: Rate = None,
    seeds: Seeds = 1,
    out: Out = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Plan for each of several values, with both leaders, and compare.

    Shown are the two leaders' payment, conservation rate and cost, what the anticipating one saves,
    and what a client could gain if it knew its influence on the total.
    """
    from dufl.experiment.config import load
    from dufl.experiment.files import to_json, write_text
    from dufl.experiment.output import SWEEP, check_output, writing
    from dufl.experiment.planning import pinned

    key, values = _axis(axis)
    pins = {"payment_range": payment, "conservation_range": conservation_rate}
    for name, pin in pins.items():
        if pin is not None and key == f"game.{name}":
            option = "--payment" if name == "payment_range" else "--conservation-rate"
            raise InputError.of(option, f"left out when {key} varies", pin)
    if seeds > 1 and key == "clients.seed":
        raise InputError.of("--seeds", "left out when clients.seed varies", seeds)
    if out:
        check_output(out, SWEEP, force)
    rows = []
    with progress_bar() as begin:
        advance = begin(f"sweeping {key}")
        total = len(values) * seeds
        for text, value in values.items():
            for seed in range(seeds):
                drawn = [f"clients.seed={seed}"] if seeds > 1 else []
                config = load(file, [*(changes or []), f"{key}={text}", *drawn])
                row = _row(pinned(config, payment, conservation_rate))
                rows.append({"value": value, "seed": seed} | row)
                advance(len(rows) / total)
    from dufl.report.figures import write_sweep_figure
    from dufl.report.tables import sweep_csv, sweep_table

    if out:
        with writing(out, SWEEP, force) as folder:
            write_text(folder / "sweep.csv", sweep_csv(key, rows))
            write_sweep_figure(key, rows, folder)
    if json:
        typer.echo(to_json({"key": key, "rows": rows}), nl=False)
        return
    console(200).print(sweep_table(key, rows))
    if out:
        typer.echo(f"written: {out}/sweep.csv, {out}/sweep.png, {out}/sweep.svg, {out}/sweep.pdf")


def _axis(axis: str) -> tuple[str, dict[str, Any]]:
    """The key, with its section, and the values by their texts."""
    from dufl.experiment.config import parse_change

    key, equals, text = axis.partition("=")
    parts = re.split(r",(?![^\[{]*[\]}])", text)  # not at a comma inside a list or a table
    texts = [part.strip() for part in parts if part.strip()]
    if not equals or not texts:
        raise InputError.of("the axis", "KEY=V1,V2,…", repr(axis))
    try:
        parsed = {text: parse_change(f"{key}={text}") for text in texts}
    except InputError as error:
        raise (error.renamed("the axis") if error.field == "changes" else error) from None
    section, name, _ = parsed[texts[0]]
    return f"{section}.{name}", {text: value for text, (_, _, value) in parsed.items()}


def _row(config: "Config") -> dict[str, Any]:
    from dufl.game.plan import algorithm1_baseline, solve

    best = solve(config.game, competition=config.leader.competition)
    paper = algorithm1_baseline(config.game, config.leader.competition)
    return {
        "payment": best.payment,
        "conservation_rate": best.conservation_rate,
        "server_cost": best.server_cost,
        "algorithm1_payment": paper.payment if paper else None,
        "algorithm1_conservation_rate": paper.conservation_rate if paper else None,
        "algorithm1_cost": paper.server_cost if paper else None,
        "no_update_cost": best.no_update_cost,
        "influence_gain": best.certificate.influence,
    }
