"""`dufl plan`: the payment, the conservation rate and what each client collects."""

from typing import Annotated, Literal

import typer

from dufl.cli.common import Changes, File, Force, Json, Out, console, parse_changes, progress_bar

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
Robust = Annotated[
    Literal["expected", "worst"] | None,
    typer.Option(
        help="Plan under the loss law's uncertainty: for the least expected cost, or for the worst case.",
        show_default=False,
    ),
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
    robust: Robust = None,
    out: Out = None,
    force: Force = False,
    json: Json = False,
    trajectories: Trajectories = None,
) -> None:
    """Compute the optimal payment and conservation rate, and what every client collects.

    --payment and --conservation-rate fix these values. If both are fixed, only the clients' response is
    computed. --budget, --accuracy and --point-worth plan for a goal; they need a loss law from `dufl
    calibrate`, and so does --robust.
    """
    from dufl.experiment.config import Experiment
    from dufl.experiment.files import to_json
    from dufl.experiment.output import PLAN, check_output
    from dufl.experiment.planning import baseline_of, has_baseline, offered, summary
    from dufl.game.robust import check_robust

    more = {"leader.robust": robust} if robust else {}
    experiment = Experiment.from_toml(file, parse_changes(changes) | more).fixed(payment, conservation_rate)
    goals = {"budget": budget, "accuracy": accuracy, "point_worth": point_worth}
    experiment = experiment.for_goal({name: goal for name, goal in goals.items() if goal is not None})
    if out:
        check_output(out, PLAN, force)
    with progress_bar() as begin:
        given = payment is not None and conservation_rate is not None
        if given and robust:
            check_robust(experiment.game, experiment.leader.method)
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
