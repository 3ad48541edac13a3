"""`dufl flower`: plans and training on Flower."""

import shlex
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dufl.cli.common import (
    Changes,
    File,
    Force,
    ImportFrom,
    Json,
    OutputPath,
    allow_imports,
    console,
    parse_changes,
)
from dufl.errors import InputError

app = typer.Typer(
    help="Run on Flower: in simulation, or in a deployment.", no_args_is_help=True, suggest_commands=False
)
RunFolder = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="The run directory to write.", click_type=OutputPath()),
]
Negotiate = Annotated[
    bool,
    typer.Option("--negotiate", help="Negotiate the plan; the clients keep their costs private."),
]

Attacks = Annotated[
    str | None,
    typer.Option("--attacks", metavar="NAMES", help="The attacks, separated by commas.", show_default="all"),
]


@app.command()
def simulate(
    file: File = None,
    changes: Changes = None,
    out: RunFolder = Path("runs/flower"),
    negotiate: Negotiate = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    force: Force = False,
    plugins: ImportFrom = None,
    json: Json = False,
) -> None:
    """Train as `dufl train` does, in Flower's simulation.

    The run directory is that of `dufl train`, with deal.json and ledger.sqlite in addition.
    """
    from dufl.cli.train import bar, configured, show_run
    from dufl.experiment.files import check_directory
    from dufl.experiment.output import FLOWER, claim
    from dufl.experiment.run_directory import RunDirectory
    from dufl.flower.constant_offer import constant_offer
    from dufl.game.voluntary import require_mandatory

    allow_imports(plugins)
    check_directory(out)
    config = configured(file, changes, out, resume, on_flower=True)
    constant_offer(config)
    config.leader.check_on_flower()
    require_mandatory(config.game, "on Flower")
    if config.game.horizon == "endless" and config.service.max_rounds is None:
        rule = "given in a simulation with horizon = 'endless', which would not end"
        raise InputError.of("service.max_rounds", rule, None, text="nothing")
    place = RunDirectory(out, FLOWER)
    place.check_free(config, resume, force)
    if place.summary is None:
        needs_flower()
        from dufl.flower.single_machine import simulate as run

        if not place.exists:
            claim(out, FLOWER, force)
        with bar(config.total_rounds or config.game.num_rounds) as watch:
            run(config, out, negotiate=negotiate, on_record=watch)
    from dufl.experiment.train import Run

    records, early = place.records(), (place.summary or {}).get("stopped_early") is True
    if not records:
        raise InputError.of("service.total_budget", "enough for one round", config.service.total_budget)
    done = Run(config, records, place.weights(), out, early, agreed=place.agreed_plan(config))
    show_run(done, json, "metrics.jsonl, model.safetensors, ledger.sqlite, training.png and more")


def needs_flower() -> None:
    """Raise an error that says what to install if Flower is missing."""
    import importlib.util

    if importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None:
        raise InputError("dufl flower needs Flower: pip install 'dufl[flower,train]'")


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app directory to write.")],
    file: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The initial configuration.", show_default=False),
    ] = None,
    changes: Changes = None,
    publisher: Annotated[
        str, typer.Option(metavar="NAME", help="The name of your account on Flower Hub.")
    ] = "your-account",
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="The directory for configurations and results; by default ~/dufl/NAME.",
            show_default=False,
        ),
    ] = None,
    requires_dufl: Annotated[
        bool | None,
        typer.Option(
            "--require-dufl/--no-require-dufl",
            help="Whether the app declares DUFL as a dependency, which Flower installs for every run;"
            " by default if DUFL was installed from an index.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write an app directory for `flwr run` and Flower Hub, and configurations of server and clients."""
    from dufl.experiment.config import Experiment
    from dufl.flower.scaffold import new_app

    config = Experiment.from_toml(file, parse_changes(changes))
    try:
        made = new_app(folder, config, publisher=publisher, data=data, requires_dufl=requires_dufl)
    except InputError as error:
        names = {"folder": "DIR", "publisher": "--publisher", "data": "--data"}
        raise (error.renamed(names[error.field]) if error.field in names else error) from None
    size = f"num-supernodes={config.game.clients.size} client-resources-num-cpus=1"
    path = shlex.quote(str(folder))
    where = " --run-config " + shlex.quote(f'data="{made.data}"') if made.elsewhere else ""
    typer.echo(f"written: {folder}")
    typer.echo(f"configurations and results: {made.data}")
    typer.echo(f"run it in simulation: flwr run {path} --stream --federation-config '{size}'{where}")
    typer.echo(f"run it on a SuperLink: flwr run {path} NAME{where}")
    if not made.requires_dufl:
        typer.echo("DUFL is not a dependency of the app: install it where SuperLink and SuperNodes run")


@app.command()
def rehearse(
    file: File = None,
    changes: Changes = None,
    draws: Annotated[
        int, typer.Option(min=1, max=100_000, help="The number of random draws of the clients' costs.")
    ] = 5,
    json: Json = False,
) -> None:
    """Rehearse the negotiation, and compare the result with the plan for known costs.

    The clients' true costs are drawn at random. The clients of the file are the server's first guess.
    """
    from dufl.cli.common import progress_bar
    from dufl.experiment.config import Experiment
    from dufl.experiment.files import to_json
    from dufl.flower.single_machine import rehearsal_table
    from dufl.flower.single_machine import rehearse as run

    config = Experiment.from_toml(file, parse_changes(changes))
    with progress_bar() as begin:
        advance = begin("negotiating")
        rows = []
        for draw in range(draws):
            rows.append(run(config, draw))
            advance((draw + 1) / draws)
    if json:
        typer.echo(to_json(rows), nl=False)
        return
    console().print(rehearsal_table(rows))


@app.command()
def attack(
    file: File = None,
    changes: Changes = None,
    attacks: Attacks = None,
    cheats: Annotated[int, typer.Option(min=1, max=10_000, help="The number of clients that cheat.")] = 1,
    runs: Annotated[int, typer.Option(min=1, max=100_000, help="The number of runs of each attack.")] = 10,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=10**6, help="The number of rounds of a run.", show_default="all of the plan"),
    ] = None,
    json: Json = False,
) -> None:
    """Let clients cheat with their data, and show what they are paid and whether the audit notices.

    Run i has the seeds of the file plus i, for training and for the costs of the clients. The first clients
    cheat. Without messages, a run is as fast as `dufl train`.
    """
    from dufl.cli.common import progress_bar
    from dufl.experiment.config import Experiment
    from dufl.experiment.files import to_json
    from dufl.flower.attacks import ATTACKS, attack_table, run_attack, summary

    config = Experiment.from_toml(file, parse_changes(changes))
    names = _chosen(attacks, ATTACKS)
    if cheats >= config.game.clients.size:
        raise InputError.of("--cheats", f"< {config.game.clients.size}, the number of clients", cheats)
    dataset = config.data.load()
    results = []
    with progress_bar() as begin:
        for name in names:
            advance = begin(name)
            outcomes = []
            for run in range(runs):
                outcomes.append(run_attack(config.with_seed(run), dataset, name, range(cheats), rounds))
                advance((run + 1) / runs)
            results.append(summary(outcomes))
    if json:
        typer.echo(to_json(results), nl=False)
        return
    console().print(attack_table(results))


@app.command("attack-protocol")
def attack_protocol(
    file: File = None, changes: Changes = None, attacks: Attacks = None, json: Json = False
) -> None:
    """Let a client cheat in its messages, and show what it is paid and what the server does.

    Client 1 cheats. Server and clients exchange Flower's messages in one process, and negotiate the plan.
    """
    from dufl.cli.common import progress_bar
    from dufl.experiment.config import Experiment
    from dufl.experiment.files import to_json

    needs_flower()
    from dufl.flower.protocol_attacks import PROTOCOL_ATTACKS, protocol_table, run_protocol_attack

    config = Experiment.from_toml(file, parse_changes(changes))
    names = _chosen(attacks, PROTOCOL_ATTACKS)
    outcomes = []
    with progress_bar() as begin:
        advance = begin("attacks")
        for i, name in enumerate(names):
            outcomes.append(run_protocol_attack(config, name))
            advance((i + 1) / len(names))
    if json:
        typer.echo(to_json([asdict(outcome) for outcome in outcomes]), nl=False)
        return
    console().print(protocol_table(outcomes))


def _chosen(names: str | None, attacks: Iterable[str]) -> list[str]:
    """The attacks that a user named."""
    known = list(attacks)
    chosen = known if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in known]:
        raise InputError.of("--attacks", f"some of {', '.join(known)}", unknown[0])
    return chosen
