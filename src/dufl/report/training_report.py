"""The report of one run or several: one HTML page, made from their run directories alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dufl.data.arrival import Arrival
from dufl.errors import DuflError, InputError
from dufl.experiment.files import write_text
from dufl.experiment.output import check_file
from dufl.experiment.run_directory import RunDirectory
from dufl.experiment.stored import Group, group, read_runs
from dufl.game.plan import Plan
from dufl.game.search import Progress
from dufl.report.clients_section import clients_section
from dufl.report.data_charts import data_charts
from dufl.report.left_out_section import left_out_section
from dufl.report.page import Block, Section, make_page, paragraph
from dufl.report.plan_section import plan_section
from dufl.report.planning import Planning, plannings
from dufl.report.results_section import facts, headline, results_section, title
from dufl.report.run_charts import classes_chart
from dufl.report.samples_section import arrival_of, datasets, samples_section
from dufl.report.setup_section import setup_section


@dataclass(frozen=True)
class Written:
    """A report on disk: where, of how many runs, how many bytes."""

    path: Path
    runs: int
    size: int


def write_report(
    places: Sequence[Path], out: Path | None = None, progress: Progress = lambda _: None
) -> Written:
    """Make the page of some runs.

    Args:
        places: run directories, or folders that hold run directories.
        out: the file to write; by default `report.html` in the place, if there is but one, or else in the
            current folder.
        progress: told the share of the work that is done.
    """
    path = out or (places[0] if len(places) == 1 else Path()) / "report.html"
    runs = read_runs(places)
    _check(path, named=out is not None)
    groups = group(runs)
    found = plannings(groups, lambda share: progress(0.5 * share))
    data = datasets(groups)
    arrival = arrival_of(groups, data)
    in_folder = len(places) == 1 and RunDirectory.at(places[0]) is None
    sections = [
        results_section(groups, arrival),
        plan_section(found, lambda share: progress(0.5 + 0.4 * share)),
        _data_section(groups, found, arrival),
        *clients_section(found),
        *left_out_section(groups),
        samples_section(groups, data),
        setup_section(runs, groups, in_folder),
    ]
    top = paragraph(headline(groups, found), "lede") + facts(groups, found)
    page = make_page(title(groups), top, sections)
    text = page.encode(errors="replace").decode()  # names of files need not be UTF-8
    try:
        write_text(path, text)
    except OSError as fault:
        raise DuflError(f"{path} cannot be written to: {fault}") from fault
    progress(1.0)
    return Written(path, len(runs), len(text.encode()))


def _check(path: Path, named: bool) -> None:
    """Refuse, before any work is done, a place where no page can be written.

    A link in a stranger's run directory is not followed: it could lead to any file of the user's.
    """
    check_file(path, "--out")
    if not named and path.is_symlink():
        raise InputError.of(
            "--out", f"given, as {path} is a symbolic link", f"none: it leads to {path.resolve()}"
        )


def _data_section(groups: Sequence[Group], found: Sequence[Planning], arrival: Arrival | None) -> Section:
    plans = _plans(groups, found)
    said = "Broad lines are what was planned, thin ones what was measured in the clients' buffers."
    alone = "The policy of data update is a user's own, and no plan stands beside what was measured."
    charts = [*data_charts(groups, plans), classes_chart(groups, arrival)]
    blocks: list[Block] = [paragraph(said if plans else alone), charts]
    return Section("Data", "Data: planned and measured", blocks)


def _plans(groups: Sequence[Group], found: Sequence[Planning]) -> dict[Group, Plan]:
    """The plan of every group that follows one."""
    owners = {one: planning for planning in found for one in planning.groups}
    followed = {one: owners[one].followed_by(one) for one in groups}
    return {one: plan for one, plan in followed.items() if plan is not None}
