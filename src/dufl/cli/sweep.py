"""`dufl sweep`: plans for several values of one or more configuration keys."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dufl.cli.common import Changes, Force, Json, Out, console, parse_changes, progress_bar
from dufl.cli.plan import Payment, Rate
from dufl.errors import InputError

Axes = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY=V1,V2,… [FILE]",
        help="The values of a key, e.g. game.time_sensitivity=0.2,0.41,0.75; several keys give all "
        "combinations. Then the TOML file. Default: the paper's parameters.",
        show_default=False,
    ),
]
Seeds = Annotated[
    int, typer.Option(min=1, max=100_000, help="The number of draws of the clients, starting at seed 0.")
]


def sweep(
    axes: Axes,
    changes: Changes = None,
    payment: Payment = None,
    conservation_rate: Rate = None,
    seeds: Seeds = 1,
    out: Out = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Plan for several values of a key with both leaders, and compare.

    The table shows the payment, the conservation rate and the cost of both leaders, the savings of the
    Stackelberg leader, and what a client could gain if it accounted for its influence on the total.
    """
    from dufl.experiment.config import Experiment
    from dufl.experiment.files import to_json, write_text
    from dufl.experiment.output import SWEEP, check_output, writing
    from dufl.experiment.sweep import check_axes, sweep_rows

    file, values = _axes(axes)
    fixed = {"game.payment_range": payment, "game.conservation_range": conservation_rate}
    for key, value in fixed.items():
        if value is not None and key in values:
            option = "--payment" if key == "game.payment_range" else "--conservation-rate"
            raise InputError.of(option, f"left out when {key} varies", value)
    check_axes(values, seeds)
    if out:
        check_output(out, SWEEP, force)
    given = parse_changes(changes)

    def variant(combination: Mapping[str, Any], seed: int) -> Experiment:
        drawn = {"clients.seed": seed} if seeds > 1 else {}
        experiment = Experiment.from_toml(file, {**given, **combination, **drawn})
        return experiment.fixed(payment, conservation_rate)

    with progress_bar() as begin:
        rows = sweep_rows(values, seeds, variant, begin(f"sweeping {', '.join(values)}"))
    from dufl.report.figures import write_sweep_figure
    from dufl.report.tables import sweep_csv, sweep_table

    keys = list(values)
    if out:
        with writing(out, SWEEP, force) as folder:
            write_text(folder / "sweep.csv", sweep_csv(keys, rows))
            write_sweep_figure(keys, rows, folder)
    if json:
        typer.echo(to_json({"keys": keys, "rows": rows}), nl=False)
        return
    console(200).print(sweep_table(keys, rows))
    if out:
        typer.echo(f"written: {out}/sweep.csv, {out}/sweep.png, {out}/sweep.svg, {out}/sweep.pdf")


def _axes(arguments: list[str]) -> tuple[Path | None, dict[str, list[Any]]]:
    """The file, if one is given, and the values of every key."""
    files = [text for text in arguments if "=" not in text or Path(text).exists()]
    if len(files) > 1:
        raise InputError.of("FILE", "one TOML file", files, text=", ".join(files))
    values: dict[str, list[Any]] = {}
    for text in arguments:
        if text not in files:
            key, listed = _axis(text)
            if key in values:
                raise InputError.of("KEY=V1,V2,…", "given once per key", key, text=f"{key} twice")
            values[key] = listed
    if not values:
        raise InputError.of("the axis", "KEY=V1,V2,…", arguments, text=repr(" ".join(arguments)))
    return (Path(files[0]) if files else None), values


def _axis(text: str) -> tuple[str, list[Any]]:
    key, _, listed = text.partition("=")
    parts = re.split(r",(?![^\[{]*[\]}])", listed)  # not at a comma inside a list or a table
    texts = [part.strip() for part in parts if part.strip()]
    if not texts or not key.strip():
        raise InputError.of("the axis", "KEY=V1,V2,…", text, text=repr(text))
    try:
        pairs = [item for one in texts for item in parse_changes([f"{key}={one}"]).items()]
    except InputError as error:
        raise (error.renamed("the axis") if error.field == "changes" else error) from None
    return pairs[0][0], [value for _, value in pairs]
