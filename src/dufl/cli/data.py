"""`dufl data`: list, fetch and show datasets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dufl.cli.common import Json, console, progress_bar
from dufl.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dufl.data.datasets import Columns, Listing
    from dufl.data.recording import Recording, Task
    from dufl.reproduce.item import Advance

app = typer.Typer(help="List, fetch and show datasets.", no_args_is_help=True, suggest_commands=False)

Name = Annotated[str, typer.Argument(help="The name of a dataset or a recording; see dufl data list.")]
Shown = Annotated[
    str,
    typer.Argument(
        help="The name of a dataset or a recording; an .npz file with x_train, y_train, x_test, y_test; "
        "or a file with times."
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="The directory of the files. Default: $DUFL_DATA, then the user's cache directory.",
        show_default=False,
    ),
]
RECORDED, IMAGES = "Recordings", "Images"


def _column_option(help: str, metavar: str) -> Any:
    return typer.Option(help=help, metavar=metavar, show_default=False, rich_help_panel=RECORDED)


@app.command("list")
def list_datasets(
    data_dir: Folder = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Verify the checksums of the files.")
    ] = True,
    json: Json = False,
) -> None:
    """List the datasets with their location, number of samples and state."""
    from dataclasses import asdict

    from dufl.data.datasets import listing
    from dufl.data.datasets.catalogue import CATALOGUE
    from dufl.data.datasets.known_recordings import RECORDINGS
    from dufl.data.datasets.location import data_folders
    from dufl.experiment.files import to_json

    if data_dir and not data_dir.is_dir():
        raise InputError.of("--data-dir", "a folder that exists", data_dir)
    rows, names = [], [*CATALOGUE, *RECORDINGS]
    with progress_bar() as begin:
        advance = begin("verifying" if verify else "looking")
        for name in names:
            rows.append(listing(name, data_dir, verify))
            advance(len(rows) / len(names))
    folders = [str(folder) for folder in data_folders(data_dir)]
    if json:
        datasets = [asdict(row) | {"where": str(row.where) if row.where else None} for row in rows]
        typer.echo(to_json({"folders": folders, "datasets": datasets}), nl=False)
        return
    output = console(160)
    output.print(_table(rows, verify, wide=output.width >= 120))
    for row in rows:
        if row.problem:
            output.print(f"corrupt: {row.problem}", soft_wrap=True, highlight=False)
    looked = ", ".join(_short(Path(folder)) for folder in folders)
    output.print(f"looked in {looked}", soft_wrap=True, highlight=False)


@app.command()
def fetch(name: Name, data_dir: Folder = None) -> None:
    """Download, verify and unpack a dataset. Verified files are not downloaded again."""
    from dufl.data.datasets import listing
    from dufl.data.datasets.fetch import fetch
    from dufl.data.datasets.location import data_folders

    folder = data_folders(data_dir)[0]
    with _options(), progress_bar() as begin:
        path = fetch(name, folder, begin)
    if path is None:
        home = "scikit-learn" if name == "digits" else "DUFL"
        typer.echo(f"{name} needs no files: it comes with {home}")
        return
    state = listing(name, folder, check=True).state if path.is_file() else "verified"  # a recording is a file
    typer.echo(f"{state}: {_short(path)}")


@app.command()
def show(
    name: Shown = "digits",
    data_dir: Folder = None,
    periods: Annotated[
        int, typer.Option(help="The number of periods, with equally many samples.", rich_help_panel=RECORDED)
    ] = 12,
    label: Annotated[
        str | None, _column_option("The column with the labels. Default: label.", "COLUMN")
    ] = None,
    time: Annotated[str | None, _column_option("The column with the times. Default: time.", "COLUMN")] = None,
    client: Annotated[
        str | None, _column_option("The column with the clients. Default: client, if there is one.", "COLUMN")
    ] = None,
    features: Annotated[
        str | None, _column_option("The columns of the features. Default: all others.", "COLUMN,COLUMN")
    ] = None,
    task: Annotated[
        str,
        typer.Option(help="classification, or regression if labels are numbers.", rich_help_panel=RECORDED),
    ] = "classification",
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the numbers behind the image. It is written only with --out.",
            rich_help_panel=RECORDED,
        ),
    ] = False,
    time_sensitivity: Annotated[
        float, typer.Option(help="σ, the rate at which samples change with age.", rich_help_panel=IMAGES)
    ] = 1.25,
    noise_scale: Annotated[
        float, typer.Option(help="The scale of the noise on features in [0, 1].", rich_help_panel=IMAGES)
    ] = 0.5,
    num_rounds: Annotated[
        int,
        typer.Option(help="T, the number of rounds over which the noise grows.", rich_help_panel=IMAGES),
    ] = 100,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE.png", help="The image to write. Default: NAME.png.", show_default=False
        ),
    ] = None,
) -> None:
    """Draw a dataset.

    Of images: samples with their labels at increasing ages. Of a recording: the classes over time, the drift
    of the features, and the accuracy of models as they age.
    """
    from dufl.data.ageing import Ageing
    from dufl.data.datasets import load_dataset
    from dufl.data.recording import Recording
    from dufl.report.sample_images import check_image_file, data_figure, save_image

    ageing = Ageing(time_sensitivity=time_sensitivity, noise_scale=noise_scale, num_rounds=num_rounds)
    path = out or Path(f"{_stem(name)}.png")
    if out or not json:
        check_image_file(path)
    kind = _task(task)
    columns = _columns(name, {"label": label, "time": time, "client": client, "features": features})
    with _options(), progress_bar() as begin:
        begin("loading")
        dataset = load_dataset(name, data_dir, columns, kind)
        found = dataset.task if isinstance(dataset, Recording) else "classification"
        if found != kind:
            rule = f"{found}, because the labels of {dataset.name} are classes"
            raise InputError.of("--task", rule, kind)
        if isinstance(dataset, Recording):
            lines = _show_recording(dataset, periods, None if json and out is None else path, json, begin)
        elif json:
            raise InputError.of("--json", "left out for a dataset without times", dataset.name)
        else:
            begin("drawing")
            save_image(data_figure(dataset, ageing), path)
            lines = f"{dataset.describe()}\nwritten: {path}\n"
    typer.echo(lines, nl=False)


def _show_recording(
    recording: "Recording", periods: int, path: Path | None, json: bool, begin: "Callable[[str], Advance]"
) -> str:
    """Measure and draw a recording; returns what is printed."""
    from dufl.experiment.drift import measure_drift
    from dufl.experiment.files import to_json

    drift = measure_drift(recording, periods, progress=begin("training"))
    if path is not None:
        from dufl.report.drift_figure import drift_figure
        from dufl.report.sample_images import save_image

        begin("drawing")
        save_image(drift_figure(drift), path)
    if json:
        return to_json(drift.to_dict())
    return "\n".join([recording.describe(), *drift.notes(), drift.sentence(), f"written: {path}\n"])


def _stem(name: str) -> str:
    """The name of a dataset, or of a file without its folder and type."""
    from dufl.data.datasets.recordings import recording_suffix

    file = Path(name).name
    return file.removesuffix(suffix) if (suffix := recording_suffix(Path(file))) else Path(name).stem


def _task(text: str) -> "Task":
    if text not in ("classification", "regression"):
        raise InputError.of("--task", "classification or regression", text)
    return cast("Task", text)


def _columns(name: str, given: dict[str, str | None]) -> "Columns":
    """The columns of a table; refused for anything else, where they would have no effect."""
    from dufl.data.datasets import Columns
    from dufl.data.datasets.recordings import recording_suffix

    named: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    for key, value in named.items():
        if recording_suffix(Path(name)) in ("", ".npz"):
            raise InputError.of(f"--{key}", f"left out for {name}, which is not a table", value)
    if "features" in named:
        named["features"] = tuple(part.strip() for part in named["features"].split(","))
    return Columns(**named)


@contextmanager
def _options() -> Iterator[None]:
    """Report errors of arguments under the names of their options."""
    try:
        yield
    except InputError as error:
        field = {"data_dir": "--data-dir", "periods": "--periods"}.get(error.field, error.field)
        if field.startswith("columns."):
            field = f"--{field.removeprefix('columns.')}"
        raise (error.renamed(field) if field != error.field else error) from None


def _table(rows: "list[Listing]", verify: bool, wide: bool) -> "Table":
    """One row per dataset or recording. The kind of data and the classes are shown only in a wide table."""
    from rich import box
    from rich.table import Table

    counts = ("train", "test", "records")
    table = Table(box=box.SQUARE, title_justify="left")
    for column in ("name", "data", "classes", *counts) if wide else ("name", *counts):
        table.add_column(column, justify="left" if column in ("name", "data") else "right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("where", overflow="fold")
    for row in rows:
        kind, classes, *numbers = _cells(row)
        about = [kind, classes] if wide else []
        where = _short(row.where) if row.where else _elsewhere(row)
        table.add_row(row.name, *about, *numbers, _state(row, verify), where)
    return table


def _cells(row: "Listing") -> tuple[str, str, str, str, str]:
    """The kind of data and the numbers of classes, training samples, test samples and records."""
    from dufl.data.datasets.catalogue import CATALOGUE
    from dufl.data.datasets.known_recordings import RECORDINGS

    if row.kind == "recording":
        recorded = RECORDINGS[row.name]
        records = _count(row.records, recorded.records)
        return f"{recorded.num_features} features", str(recorded.num_classes), "", "", records
    known = CATALOGUE[row.name]
    channels, height, width = known.shape
    image = f"{height}×{width} {'grey' if channels == 1 else 'RGB'}"
    counts = _count(row.train, known.train), _count(row.test, known.test)
    return image, str(len(known.class_names)), *counts, ""


def _count(present: int, total: int) -> str:
    """The number of samples, and the full number if some are missing."""
    return f"{present:,}" if present == total else f"{present:,} of {total:,}" if present else ""


def _state(row: "Listing", verify: bool) -> str:
    if row.state != "subset":
        return row.state if verify or row.state != "unverified" else "not checked"
    return "subset, verified" if row.verified else "subset"


def _elsewhere(row: "Listing") -> str:
    embedded = "in DUFL" if row.kind == "recording" else "in scikit-learn"
    return embedded if row.state == "embedded" else f"dufl data fetch {row.name}"


def _short(path: Path) -> str:
    """The path, relative to the home directory if it is inside."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)
