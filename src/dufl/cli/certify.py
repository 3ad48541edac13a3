"""`dufl certify`: verify a stored plan from its numbers alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dufl.cli.common import Json, progress_bar

if TYPE_CHECKING:
    from dufl.game.certificate import Certificate


def certify(
    folder: Annotated[Path, typer.Argument(help="The output directory of `dufl plan --out`.")],
    json: Json = False,
    tolerance: Annotated[float, typer.Option(min=0, help="The maximum relative error.")] = 1e-6,
) -> None:
    """Verify a stored plan: the volume law, optimality, no gain from deviating. Exit code 1 on failure."""
    from dufl.experiment.files import to_json

    with progress_bar() as begin:
        begin("certifying")
        result = _certificate(folder)
    summary = {
        "holds": result.holds(tolerance),
        "volume_law_residual": float(result.law_residual.max()),
        "kkt_residual": float(result.kkt_residual.max()),
        "equilibrium_residual": result.equilibrium_residual,
        "deviation_gain": result.deviation_gain,
        "influence_gain": result.influence,
        "worst_client": int(result.kkt_residual.argmax()),
        "competition": result.competition,
    }
    if json:
        typer.echo(to_json(summary), nl=False)
    else:
        for name, value in summary.items():
            shown = f"{value:.2e}" if isinstance(value, float) else str(value).lower()
            typer.echo(f"{name.replace('_', ' '):<22} {shown}")
    if not summary["holds"]:
        raise typer.Exit(1)


def _certificate(folder: Path) -> "Certificate":
    """The certificate of the plan in a directory, with or without a last round."""
    from dufl.experiment.endless_directory import certify_endless, is_endless
    from dufl.experiment.plan_directory import read_profile
    from dufl.game.certificate import certify_profile

    if is_endless(folder):
        return certify_endless(folder)
    stored = read_profile(folder)
    offer = stored.offer.payment, stored.offer.conservation_rate
    return certify_profile(stored.game, *offer, stored.volume, stored.collection, stored.competition)
