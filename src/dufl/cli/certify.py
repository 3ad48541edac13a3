"""`dufl certify`: verify a stored plan from its numbers alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dufl.cli.common import Json, progress_bar

if TYPE_CHECKING:
    from dufl.experiment.plan_directory import Profile
    from dufl.game.certificate import Certificate


def certify(
    folder: Annotated[Path, typer.Argument(help="The output directory of `dufl plan --out`.")],
    json: Json = False,
    tolerance: Annotated[float, typer.Option(min=0, help="The maximum relative error.")] = 1e-6,
) -> None:
    """Verify a stored plan: the volume law, optimality, no gain from deviating. Exit code 1 on failure.

    If participation is voluntary, clients that hold nothing stay away: they are left out, and nobody may gain
    by leaving or entering.
    """
    from dufl.experiment.endless_directory import certify_endless, is_endless
    from dufl.experiment.files import to_json
    from dufl.experiment.plan_directory import read_profile

    stored = None
    with progress_bar() as begin:
        begin("certifying")
        if is_endless(folder):
            result = certify_endless(folder)
        else:
            stored = read_profile(folder)
            result = _certificate(folder, stored)
    worst = int(result.kkt_residual.argmax())
    summary: dict[str, Any] = {
        "holds": result.holds(tolerance),
        "volume_law_residual": float(result.law_residual.max()),
        "kkt_residual": float(result.kkt_residual.max()),
        "equilibrium_residual": result.equilibrium_residual,
        "deviation_gain": result.deviation_gain,
        "influence_gain": result.influence,
        "worst_client": int(stored.clients[worst]) if stored and stored.clients.size else worst,
        "competition": result.competition,
    }
    if stored and stored.staying_away is not None:
        summary["participation_gain"] = result.participation_gain
        summary["staying_away"] = stored.staying_away
    if json:
        typer.echo(to_json(summary), nl=False)
    else:
        for name, value in summary.items():
            shown = f"{value:.2e}" if isinstance(value, float) else str(value).lower()
            typer.echo(f"{name.replace('_', ' '):<22} {shown}")
    if not summary["holds"]:
        raise typer.Exit(1)


def _certificate(folder: Path, stored: "Profile") -> "Certificate":
    """The certificate of a stored profile, and of who takes part if participation is voluntary."""
    from dataclasses import replace

    from dufl.experiment.plan_directory import read_plan
    from dufl.game.certificate import certify_profile

    if stored.staying_away is not None and not stored.clients.size:
        return read_plan(folder).certificate
    offer = stored.offer.payment, stored.offer.conservation_rate
    result = certify_profile(stored.game, *offer, stored.volume, stored.collection, stored.competition)
    if stored.staying_away is None:
        return result
    return replace(result, participation_gain=read_plan(folder).certificate.participation_gain)
