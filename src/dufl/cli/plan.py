"""`dufl plan`: the payment, the conservation rate and what each client collects."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dufl.cli.common import Changes, File, Force, Json, Out, console, parse_changes, progress_bar
from dufl.errors import InputError

if TYPE_CHECKING:
    from dufl.experiment.config import Experiment
    from dufl.experiment.remaining import Remaining

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

From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN_DIR",
        help="Plan the remaining rounds of this run again, from what its clients hold and what it measured.",
        show_default=False,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds", min=2, help="With --from: plan this many rounds. Default: those left.", show_default=False
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
    source: From = None,
    rounds: Rounds = None,
    robust: Robust = None,
    out: Out = None,
    force: Force = False,
    json: Json = False,
    trajectories: Trajectories = None,
) -> None:
    """Compute the optimal payment and conservation rate, and what every client collects.

    --payment and --conservation-rate fix these values. If both are fixed, only the clients' response is
    computed. --budget, --accuracy and --point-worth plan for a goal; they need a loss law from `dufl
    calibrate`, and so does --robust. With horizon = "endless" the plan is for a service without a last
    round, and a budget and what a point is worth are per round. --from plans the rest of a training again,
    in place of FILE. The new plan never costs more than the offer that the training made.
    """
    from dufl.experiment.config import Experiment
    from dufl.experiment.files import to_json
    from dufl.experiment.output import PLAN, check_output
    from dufl.experiment.planning import baseline_of, has_baseline, offered, summary
    from dufl.game.robust import check_robust

    check_source(file, source, rounds)
    given_changes = parse_changes(changes) | ({"leader.robust": robust} if robust else {})
    rest = None if source is None else remaining(source, given_changes, rounds)
    whole = Experiment.from_toml(file, given_changes) if rest is None else rest.experiment
    goals = {"budget": budget, "accuracy": accuracy, "point_worth": point_worth}
    wanted = {name: goal for name, goal in goals.items() if goal is not None}
    aim = wanted or whole.leader.goals
    experiment = whole.fixed(payment, conservation_rate).for_goal(wanted)
    if experiment.game.horizon == "endless":
        _endless(experiment, out, force, json)
        return
    if out:
        check_output(out, PLAN, force)
    with progress_bar() as begin:
        given = payment is not None and conservation_rate is not None
        if given and robust:
            check_robust(experiment.game, experiment.leader.method)
        choice = rest.replan(begin("searching")) if rest and experiment is whole else None
        if choice is not None:
            plan = choice.plan
        else:
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
        facts = {}
        if rest:
            from dufl.experiment.remaining import remaining_summary

            facts = remaining_summary(rest, choice)
        if plan.prediction and "accuracy" in aim:
            facts["missed_by"] = plan.prediction.missing(aim["accuracy"])
        typer.echo(to_json(summary(plan, baseline) | facts), nl=False)
        return
    from dufl.report.plan_table import plan_table

    output = console()
    output.print(plan_table(plan, baseline))
    if plan.prediction and (missed := plan.prediction.missing(aim.get("accuracy", 0.0))):
        said = f"{aim['accuracy']:g} is not reached with 90 % confidence: the best plan misses it by"
        output.print(f"an accuracy of {said} {100 * missed:.1f} points", soft_wrap=True)
    if rest:
        from dufl.report.tracking import remaining_text

        output.print(remaining_text(rest, choice), soft_wrap=True)
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


def check_source(file: Path | None, source: Path | None, rounds: int | None) -> None:
    """Raise an error if --from is given with a file, or --rounds without --from."""
    if source is not None and file is not None:
        raise InputError.of("--from", "given without FILE", file)
    if source is None and rounds is not None:
        raise InputError.of("--rounds", "left out without --from: use --set game.num_rounds", rounds)


def remaining(source: Path, changes: dict[str, Any], rounds: int | None) -> "Remaining":
    """What is left of the run in a run directory."""
    from dufl.experiment.remaining import read_remaining

    try:
        return read_remaining(source, changes, rounds)
    except InputError as error:
        raise (error.renamed("--rounds") if error.field == "num_rounds" else error) from None
