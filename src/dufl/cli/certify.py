"""`dufl certify`: judge a plan that was written, from its numbers alone."""

from pathlib import Path
from typing import Annotated

import typer

from dufl.cli.common import Json, progress_bar


def certify(
    folder: Annotated[Path, typer.Argument(help="A directory that `dufl plan --out` wrote.")],
    json: Json = False,
    tolerance: Annotated[float, typer.Option(min=0, help="The relative error that passes.")] = 1e-6,
) -> None:
    """Check a written plan: volume law, optimality, and no gain by deviating. Exit code 1 if not."""
    from dufl.experiment.files import to_json
    from dufl.experiment.plan_directory import read_profile
    from dufl.game.certificate import certify_profile

    stored = read_profile(folder)
    with progress_bar() as begin:
        begin("certifying")
        found = certify_profile(
            stored.game,
            stored.offer.payment,
            stored.offer.conservation_rate,
            stored.volume,
            stored.collection,
            stored.competition,
        )
    result = {
        "holds": found.holds(tolerance),
        "volume_law_residual": float(found.law_residual.max()),
        "kkt_residual": float(found.kkt_residual.max()),
        "equilibrium_residual": found.equilibrium_residual,
        "deviation_gain": found.deviation_gain,
        "influence_gain": found.influence,
        "worst_client": int(found.kkt_residual.argmax()),
        "competition": found.competition,
    }
    if json:
        typer.echo(to_json(result), nl=False)
    else:
        for name, value in result.items():
            shown = f"{value:.2e}" if isinstance(value, float) else str(value).lower()
            typer.echo(f"{name.replace('_', ' '):<22} {shown}")
    if not result["holds"]:
        raise typer.Exit(1)
