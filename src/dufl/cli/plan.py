"""`dufl plan`: what to pay, what to keep, what each client collects."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dufl.cli.common import Changes, File, Json, Out, progress_bar

if TYPE_CHECKING:
    from dufl.experiment.config import Config
    from dufl.game.plan import Plan

Payment = Annotated[float | None, typer.Option(help="Fix the payment R per round.", show_default=False)]
Rate = Annotated[float | None, typer.Option(help="Fix the conservation rate θ.", show_default=False)]
Trajectories = Annotated[
    bool | None,
    typer.Option(
        "--trajectories/--no-trajectories",
        help="Write every client's course into plan.npz; by default up to 20 million numbers.",
        show_default=False,
    ),
]


def plan(
    file: File = None,
    changes: Changes = None,
    payment: Payment = None,
    conservation_rate: Rate = None,
    out: Out = None,
    json: Json = False,
    trajectories: Trajectories = None,
) -> None:
    """Find what the server should pay and keep, and what every client will collect.

    With --payment or --conservation-rate that one is fixed and the other found; with both, the
    clients' answer to the offer is.
    """
    from dufl.experiment.config import load
    from dufl.experiment.files import check_directory, make_directory, to_json
    from dufl.game.plan import certify

    config = _pinned(load(file, changes or []), payment, conservation_rate)
    if out:
        check_directory(out)
    with progress_bar() as begin:
        given = payment is not None and conservation_rate is not None
        found = _offered(config) if given else config.solve(begin("searching"))
        rival = _rival(config, found, begin)
        certificate = certify(found, begin("certifying"))
        summary = found.summary() | {
            "deviation_gain": certificate.deviation_gain,
            "influence_gain": certificate.influence,
            "certificate_holds": certificate.holds(),
            "losing_clients": int((found.outcomes.utility < 0).sum()),
        }
        if rival:
            summary["algorithm1_cost"] = rival.server_cost
            summary["algorithm1_payment"] = rival.payment
        if out:
            from dufl.report.plan_files import write_plan

            advance = begin("drawing")
            written = write_plan(found, rival, summary, config, make_directory(out), trajectories, advance)
    if not found.converged:
        typer.echo(f"warning: the equilibrium is only within {found.residual:.1e}", err=True)
    if json:
        typer.echo(to_json(summary), nl=False)
        return
    from rich.console import Console

    from dufl.report.plan_table import plan_table

    console = Console(width=None if Console().is_terminal else 100)
    console.print(plan_table(found, certificate, rival))
    if out:
        console.print("written: " + ", ".join(str(path) for path in written), soft_wrap=True)


def _pinned(config: "Config", payment: float | None, rate: float | None) -> "Config":
    """The configuration with what is fixed as its whole range, so that it plans the same again."""
    from dufl.game.plan import Offer

    offer = Offer(
        payment=0.0 if payment is None else payment,
        conservation_rate=0.0 if rate is None else rate,
    )
    ranges: dict[str, tuple[float, float]] = {}
    if payment is not None:
        ranges["payment_range"] = (offer.payment, offer.payment)
    if rate is not None:
        ranges["conservation_range"] = (offer.conservation_rate, offer.conservation_rate)
    return config.model_copy(update={"game": config.game.replace(**ranges)}) if ranges else config


def _offered(config: "Config") -> "Plan":
    from dufl.game.plan import equilibrium

    return equilibrium(
        config.game,
        payment=config.game.payment_range[0],
        conservation_rate=config.game.conservation_range[0],
        competition=config.leader.competition,
    )


def _rival(config: "Config", found: "Plan", begin: Any) -> "Plan | None":
    """Algorithm 1's plan for the same game, unless there is nothing to choose."""
    from dufl.game.plan import algorithm1_rival

    if found.leader != "anticipating" or found.game.payment_range[0] == found.game.payment_range[1]:
        return None
    advance = begin("comparing with Algorithm 1")
    return algorithm1_rival(found.game, config.leader.competition, advance)
