"""The report of one run or several: one HTML page, made from their run directories alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dufl.errors import DuflError, InputError
from dufl.experiment.files import write_text
from dufl.experiment.output import check_file
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.stored import group, read_runs
from dufl.game.search import Progress
from dufl.report.audit_section import audit_section
from dufl.report.clients_section import clients_section
from dufl.report.page import Block, Paragraph, make_page
from dufl.report.plan_section import plan_section
from dufl.report.planning import plannings
from dufl.report.results_section import (
    data_section,
    facts,
    headline,
    left_out_section,
    results_section,
    title,
)
from dufl.report.setup_section import arrival_of, datasets, samples_section, setup_section


@dataclass(frozen=True)
class Written:
    """A report on disk: its path, the number of runs, and its size in bytes."""

    path: Path
    runs: int
    size: int


def write_report(
    places: Sequence[Path], out: Path | None = None, progress: Progress = lambda _: None
) -> Written:
    """Write the page of some runs.

    Args:
        places: run directories, or folders that hold run directories.
        out: the file to write; by default `report.html` in the place if there is only one, otherwise in the
            current folder.
        progress: called with the share of the work that is done.
    """
    path = out or (places[0] if len(places) == 1 else Path()) / "report.html"
    runs = read_runs(places)
    _check(path, named=out is not None)
    groups = group(runs)
    plans = plannings(groups, lambda share: progress(0.5 * share))
    data = datasets(groups)
    arrival = arrival_of(groups, data)
    in_folder = len(places) == 1 and RunDirectory.at(places[0]) is None
    sections = [
        results_section(groups, arrival),
        plan_section(plans, lambda share: progress(0.5 + 0.4 * share)),
        data_section(groups, plans, arrival),
        *clients_section(plans),
        *left_out_section(groups),
        *audit_section(groups),
        samples_section(groups, data),
        setup_section(runs, groups, in_folder),
    ]
    top: list[Block] = [Paragraph(headline(groups, plans), "lede"), facts(groups, plans)]
    page = make_page(title(groups), top, sections)
    text = page.encode(errors="replace").decode()  # names of files need not be UTF-8
    try:
        write_text(path, text)
    except OSError as error:
        raise DuflError(f"{path} cannot be written to: {error}") from error
    progress(1.0)
    return Written(path, len(runs), len(text.encode()))


def _check(path: Path, named: bool) -> None:
    """Refuse, before any work is done, a place where no page can be written.

    A link in a stranger's run directory is not followed: it could lead to any file of the user.
    """
    check_file(path, "--out")
    if not named and path.is_symlink():
        raise InputError.of(
            "--out", f"given, as {path} is a symbolic link", f"none: it leads to {path.resolve()}"
        )
