"""How the runs were made: each of them, configuration, versions, and the commands to run them again."""

import shlex
from collections.abc import Sequence
from typing import Any

from dufl.experiment.compare import slug
from dufl.formatting import duration
from dufl.report.page import Block, Cell, Section, code, details, paragraph, table
from dufl.report.planning import is_negotiated, is_on_flower
from dufl.report.stored import Group, Stored, differences

FILES = 8  # configurations that are shown at most
ENVIRONMENTS = 4


def setup_section(runs: Sequence[Stored], groups: Sequence[Group], in_folder: bool) -> Section:
    """Runs, configuration, versions and commands."""
    shown = groups[:FILES]
    files = [details(f"Configuration: {one.label}", code(_file(one), "Configuration")) for one in shown]
    more = f"{len(groups) - FILES} more are in the run directories." if len(groups) > FILES else ""
    blocks: list[Block] = [
        _runs_table(runs),
        *_differences(groups),
        "<h3>Configuration and versions</h3>\n",
        paragraph("With every default and every change in it; runs of one kind differ only by their seed."),
        *files,
        *([paragraph(more)] if more else []),
        details("Versions and machine", _versions(runs)),
        "<h3>To run it again</h3>\n",
        *_again(runs, groups, in_folder),
    ]
    return Section("Runs", "Runs and how to repeat them", blocks)


def _runs_table(runs: Sequence[Stored]) -> str:
    heads = ("directory", "algorithm", "policy", "seed", "state", "accuracy, %", "time", "weights")
    return table("Every run; equal weights have the same fingerprint", heads, [_run_row(one) for one in runs])


def _run_row(stored: Stored) -> list[Cell]:
    training, records = stored.run.config.training, stored.run.records
    summary = stored.place.summary or {}
    accuracy = 100 * records[-1].accuracy if records else float("nan")
    seconds = sum(record.seconds for record in records)
    return [
        name_of(stored),
        training.algorithm,
        training.policy,
        (f"{training.seed}", training.seed),
        stored.progress,
        (f"{accuracy:.2f}" if records else "–", accuracy),
        (duration(seconds), seconds),
        str(summary.get("fingerprint", "")) or "–",
    ]


def name_of(stored: Stored) -> str:
    """The name of its run directory."""
    return stored.folder.resolve().name


def _file(one: Group) -> str:
    return one.every[0].place.manifest.read_file("config.toml").decode()


def _differences(groups: Sequence[Group]) -> list[str]:
    """A table of the keys that are not the same in all groups, if there are others than the policy."""
    settings = [one.every[0].settings for one in groups]
    keys = differences(settings)
    if not set(keys) - {"training.policy"}:
        return []
    rows: list[list[Cell]] = [
        [one.label, *(str(told.get(key, "–")) for key in keys)]
        for one, told in zip(groups, settings, strict=True)
    ]
    return [table("What the runs were told differently", ("runs", *keys), rows)]


def _versions(runs: Sequence[Stored]) -> str:
    """Versions and machine, a column for every environment that there was."""
    found: list[dict[str, str]] = []
    for stored in runs:
        flat = _flat(stored.environment)
        if flat not in found:
            found.append(flat)
    names = list(dict.fromkeys(name for flat in found for name in flat))
    heads = ("", *(["used"] if len(found) == 1 else [f"used ({i})" for i, _ in enumerate(found, 1)]))
    rows: list[list[Cell]] = [[name, *(flat.get(name, "–") for flat in found)] for name in names]
    width = 1 + ENVIRONMENTS
    return table("Software, machine and samples", heads[:width], [row[:width] for row in rows], sorts=False)


def _flat(environment: dict[str, Any]) -> dict[str, str]:
    packages = environment.get("packages")
    known = packages if isinstance(packages, dict) else {}
    rest = {key: value for key, value in environment.items() if key not in ("packages", "seed", "data")}
    samples = {"checksum of the samples": environment["data"]} if "data" in environment else {}
    return {key: str(value) for key, value in (known | rest | samples).items()}


def _again(runs: Sequence[Stored], groups: Sequence[Group], in_folder: bool) -> list[str]:
    compared = _comparison(runs, groups) if in_folder else None
    if compared:
        where = f"In the folder that holds the {len(runs)} run directories:"
        return [paragraph(where), code(f"{compared}\ndufl report again\n", "Commands")]
    where = "In its run directory:" if len(runs) == 1 else "In each of the run directories:"
    told = dict.fromkeys(_command(stored) for stored in runs)
    return [paragraph(where), code("".join(f"{line}\n" for line in told) + "dufl report again\n", "Commands")]


def _command(stored: Stored) -> str:
    if is_on_flower(stored):
        return f"dufl flower simulate config.toml{' --negotiate' * is_negotiated(stored)} --out again"
    return "dufl train config.toml --out again"


def _comparison(runs: Sequence[Stored], groups: Sequence[Group]) -> str | None:
    """The `dufl compare` that makes these runs, if there is one."""
    keys = differences([one.every[0].settings for one in groups])
    seeds = sorted({stored.seed for stored in runs})
    if set(keys) - {"training.policy", "training.algorithm"} or any(map(is_on_flower, runs)):
        return None
    algorithms = list(dict.fromkeys(one.config.training.algorithm for one in groups))
    policies = list(dict.fromkeys(one.policy for one in groups))
    wanted = {f"{slug(a)}-{slug(p)}-{s}" for a in algorithms for p in policies for s in seeds}
    if wanted != {name_of(stored) for stored in runs} or seeds != list(
        range(seeds[0], seeds[0] + len(seeds))
    ):
        return None
    first = next(stored for stored in runs if stored.seed == seeds[0])
    named = [shlex.quote(f"{name_of(first)}/config.toml")]
    named += [
        "--algorithms",
        shlex.quote(",".join(algorithms)),
        "--policies",
        shlex.quote(",".join(policies)),
    ]
    return " ".join(["dufl compare", *named, "--seeds", str(len(seeds)), "--out again"])
