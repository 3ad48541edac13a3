"""`dufl plan`: the payment, the conservation rate and what each client collects."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dufl.cli.common import Changes, File, Force, Json, Out, console, parse_changes, progress_bar

if TYPE_CHECKING:
    from dufl.experiment.config import Experiment

Payment = Annotated[float | None, typer.Option(help="Fix the payment R per round.", show_default=False)]
Rate = Annotated[float | None, typer.Option(help="Fix the conservation rate θ.", show_default=False)]
Budget = Annotated[
    float | None,
    typer.Option(help="The most accurate plan that pays at most this over all rounds.", show_default=False),
]
Accuracy = Annotated[
    float | None,
    typer.Option(help="The cheapest plan with this accuracy, with 90 % confidence.", show_default=False),
]
PointWorth = Annotated[
    float | None,
    typer.Option(help="What a point of accuracy over the whole run is worth in money.", show_default=False),
]
Trajectories = Annotated[
    bool | None,
    typer.Option(
        "--trajectories/--no-trajectories",
        help="Write the trajectories of all clients to plan.npz. Default: only up to 20 million numbers.",
        show_default=False,
    ),
]


def plan(
    file: File = None,
    changes: Changes = None,
    payment: Payment = None,
    conservation_rate: Rate = None,
    budget: Budget = None,
    accuracy: Accuracy = None,
    point_worth: PointWorth = None,
    out: Out = None,
    force: Force = False,
    json: Json = False,
    trajectories: Trajectories = None,
) -> None:
    """Compute the optimal payment and conservation rate, and what every client collects.

    --payment and --conservation-rate fix these values. If both are fixed, only the clients' response is
    computed. --budget, --accuracy and --point-worth plan for a goal; they need a loss law from `dufl
    calibrate`. With horizon = "endless" the plan is for a service without a last round, and a budget and what
    a point is worth are per round.
    """
    from dufl.experiment.config import Experiment
    from dufl.experiment.files import to_json
    from dufl.experiment.output import PLAN, check_output
    from dufl.experiment.planning import baseline_of, has_baseline, offered, summary

    experiment = Experiment.from_toml(file, parse_changes(changes)).fixed(payment, conservation_rate)
    goals = {"budget": budget, "accuracy": accuracy, "point_worth": point_worth}
    experiment = experiment.for_goal({name: goal for name, goal in goals.items() if goal is not None})
    if experiment.game.horizon == "endless":
        _endless(experiment, out, force, json)
        return
    if out:
        check_output(out, PLAN, force)
    with progress_bar() as begin:
        given = payment is not None and conservation_rate is not None
        plan = offered(experiment) if given else experiment.solve(begin("searching"))
        baseline = baseline_of(plan, begin("comparing with Algorithm 1")) if has_baseline(plan) else None
        if out:
            from dufl.experiment.plan_directory import write_plan
            from dufl.report.figures import write_plan_figures

            advance = begin("drawing")
            written = write_plan(
                plan,
                out,
                experiment,
                baseline=baseline,
                trajectories=trajectories,
                figures=lambda folder: write_plan_figures(plan, folder, baseline, advance),
                force=force,
            )
    if json:
        typer.echo(to_json(summary(plan, baseline)), nl=False)
        return
    from dufl.report.tables import plan_table

    output = console()
    output.print(plan_table(plan, baseline))
    if out:
        output.print("written: " + ", ".join(str(path) for path in written), soft_wrap=True)


def _endless(experiment: "Experiment", out: Path | None, force: bool, json: bool) -> None:
    """The plan of a service without a last round."""
    from dufl.experiment.endless_directory import write_endless
    from dufl.experiment.files import to_json
    from dufl.experiment.output import ENDLESS, check_output

    if out:
        check_output(out, ENDLESS, force)
    with progress_bar() as begin:
        begin("searching")
        plan = experiment.solve_endless()
        written = write_endless(plan, out, experiment, force=force) if out else []
    if json:
        typer.echo(to_json(plan.summary()), nl=False)
        return
    from dufl.report.endless_table import endless_table

    output = console()
    output.print(endless_table(plan))
    if out:
        output.print("written: " + ", ".join(str(path) for path in written), soft_wrap=True)
