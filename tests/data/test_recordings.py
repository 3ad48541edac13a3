"""Recordings: every kind of source gives the same one, and every fault of a source is an `InputError`."""

import builtins
import contextlib
import csv
import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dufl import Data, InputError
from dufl.data.datasets import Columns, is_recording_source, load_dataset, load_recording
from dufl.data.datasets.known_recordings import RECORDINGS, verify_known
from dufl.data.datasets.untrusted_files import digest
from dufl.data.recording import Recording, first_not_finite, make_recording
from real_data import real_recording

GENERATOR = np.random.default_rng(0)
COUNT = 30
X = GENERATOR.normal(size=(COUNT, 3)).astype(np.float32)
Y = GENERATOR.integers(0, 3, COUNT)
TIME = np.sort(GENERATOR.integers(0, 20, COUNT)).astype(np.float64)
CLIENT = np.array(["north", "south"])[GENERATOR.integers(0, 2, COUNT)]
NAMES = ("a", "b", "c")
DAYS = np.datetime64("2024-02-28") + TIME.astype(np.int64)


def columns_of(**changes: Any) -> dict[str, list[Any]]:
    """The recording as a table."""
    table = {name: X[:, i].tolist() for i, name in enumerate(NAMES)}
    return table | {"label": Y.tolist(), "time": TIME.tolist(), "client": CLIENT.tolist()} | changes


def write_csv(path: Path, table: dict[str, list[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return path


def as_npz(folder: Path) -> Path:
    np.savez(folder / "mine.npz", x=X, y=Y, time=TIME, client=CLIENT)
    return folder / "mine.npz"


def as_csv(folder: Path) -> Path:
    return write_csv(folder / "mine.csv", columns_of())


def as_csv_gz(folder: Path) -> Path:
    (folder / "mine.csv.gz").write_bytes(gzip.compress(as_csv(folder).read_bytes()))
    return folder / "mine.csv.gz"


def as_parquet(folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns_of()), folder / "mine.parquet", row_group_size=7)
    return folder / "mine.parquet"


def as_frame(_: Path) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns_of())


def as_hugging_face(_: Path) -> Any:
    return pytest.importorskip("datasets", exc_type=ImportError).Dataset.from_dict(columns_of())


def as_torch(_: Path) -> Any:
    torch = pytest.importorskip("torch")
    x, y = torch.from_numpy(X), torch.from_numpy(Y)

    class Sensor(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, row: int) -> Any:
            return x[row], y[row], TIME[row], str(CLIENT[row])

    return Sensor()


def as_dictionaries(_: Path) -> Any:
    return [{"x": X[n], "y": Y[n], "time": TIME[n], "client": CLIENT[n]} for n in range(COUNT)]


def as_arrays(_: Path) -> Any:
    return X, Y, TIME, CLIENT


def as_function(_: Path) -> Any:
    return lambda: {"client": CLIENT, "time": TIME, "y": Y, "x": X}


SOURCES = [
    as_npz,
    as_csv,
    as_csv_gz,
    as_parquet,
    as_frame,
    as_hugging_face,
    as_torch,
    as_dictionaries,
    as_arrays,
    as_function,
]


def check_equal(found: Recording, expected: Recording) -> None:
    np.testing.assert_array_equal(found.samples.features, expected.samples.features)
    np.testing.assert_array_equal(found.samples.labels, expected.samples.labels)
    np.testing.assert_array_equal(found.times, expected.times)
    assert found.samples.features.dtype == np.float32
    assert found.samples.labels.dtype == expected.samples.labels.dtype
    assert (found.class_names, found.dated) == (expected.class_names, expected.dated)
    assert found.client_names == expected.client_names
    if expected.clients is not None:
        np.testing.assert_array_equal(found.clients, expected.clients)


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_recording(source: Callable[[Path], Any], tmp_path: Path) -> None:
    given = source(tmp_path)
    found = load_recording(given)
    check_equal(found, make_recording("mine", X, Y, TIME, CLIENT))
    assert found.client_names == ("north", "south")
    if source in (as_csv, as_csv_gz, as_parquet, as_frame, as_hugging_face):
        assert found.feature_names == NAMES
    if isinstance(given, Path):
        assert (found.name, found.source) == ("mine", given)
        again = load_dataset(given)
        assert isinstance(again, Recording)
        check_equal(again, found)


@pytest.mark.parametrize("source", SOURCES)
def test_regression_from_every_source(source: Callable[[Path], Any], tmp_path: Path) -> None:
    found = load_recording(source(tmp_path), task="regression")
    np.testing.assert_array_equal(found.samples.labels, Y.astype(np.float32))
    assert (found.task, found.num_classes) == ("regression", 1)


def test_load_dataset_and_the_section_pass_columns_and_task_on(tmp_path: Path) -> None:
    frame = as_frame(tmp_path).rename(columns={"label": "kind"})
    columns = Columns(label="kind", features=["b"])
    assert columns.features == ("b",)
    assert Columns(features="b") == Columns(features=("b",))
    path = write_csv(tmp_path / "mine.csv", frame.to_dict("list"))
    section = {"label": "kind", "features": ["b"], "task": "regression"}
    for found in (
        load_dataset(path, None, columns, "regression"),
        load_dataset(lambda: frame, None, columns, "regression"),
        *(Data(source, **section).load() for source in (str(path), frame, lambda: frame)),
    ):
        assert isinstance(found, Recording)
        np.testing.assert_array_equal(found.samples.labels, Y.astype(np.float32))
        assert (found.feature_names, found.task) == (("b",), "regression")
    with pytest.raises(InputError) as caught:
        load_recording("weather", task="regression")
    assert caught.value.field == "task"


def test_what_is_the_source_of_a_recording(tmp_path: Path) -> None:
    """Classes are not: they are called to make a dataset."""
    assert is_recording_source(make_recording("mine", X, Y, TIME))
    for source in (as_frame, as_torch):
        assert is_recording_source(source(tmp_path))
        assert not is_recording_source(type(source(tmp_path)))
    for other in ("weather", tmp_path, X, (X, Y, TIME), [X], {"x": X}, len, None):
        assert not is_recording_source(other)


def test_a_recording_is_returned_as_it_is() -> None:
    recording = make_recording("mine", X, Y, TIME)
    assert load_recording(recording) is recording
    assert load_recording(lambda: recording) is recording
    assert load_dataset(lambda: recording) is recording
    items = [(X[n], Y[n], TIME[n]) for n in range(COUNT)]

    def sensor() -> list[Any]:
        return items

    assert load_recording(sensor).name == "sensor"
    assert make_recording("mine", X, Y, TIME).samples.features is X  # not copied


def test_the_columns_by_name(tmp_path: Path) -> None:
    table = columns_of()
    renamed = {"when": table["time"], "b": table["b"], "city": table["client"], "kind": table["label"]}
    path = write_csv(tmp_path / "mine.csv", renamed | {"note": ["text"] * COUNT})
    columns = Columns(label="kind", time="when", client="city", features=("b",))
    found = load_recording(path, columns)
    np.testing.assert_array_equal(found.samples.features[:, 0], X[:, 1])
    assert (found.feature_names, found.client_names) == (("b",), ("north", "south"))
    two = load_recording(as_csv(tmp_path), Columns(features=("c", "a")))
    np.testing.assert_array_equal(two.samples.features, X[:, [2, 0]])
    codes = write_csv(tmp_path / "codes.csv", columns_of(client=[5] * COUNT))
    assert load_recording(codes, Columns(features=("a", "client"))).clients is None  # it is a feature here


# dates

ZONE = timezone(timedelta(hours=5, minutes=30))
DATES = [
    ["2024-02-28", "2024-02-28T12:00", "2024-02-29 00:00:00.5", "2024-03-01T00:00:00Z"],
    ["2024-02-28T05:30:00+05:30", "2024-02-28T12:00:00", "2024-02-29T00:00:00.500", "2024-03-01T05:30+05:30"],
]
SECONDS = [1709078400.0, 1709121600.0, 1709164800.5, 1709251200.0]


@pytest.mark.parametrize("dates", DATES)
def test_dates_of_a_csv_file(dates: list[str], tmp_path: Path) -> None:
    table: dict[str, list[Any]] = {"a": [1, 2, 3, 4], "label": ["x", "y", "x", "y"], "time": dates}
    found = load_recording(write_csv(tmp_path / "dates.csv", table))
    assert (found.times.tolist(), found.dated) == (SECONDS, True)
    assert found.class_names == ("x", "y")


def test_dates_of_all_other_sources(tmp_path: Path) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    from pyarrow import parquet

    local = [datetime.fromtimestamp(second, ZONE) for second in SECONDS]
    texts, utc = DATES[0], [datetime.fromtimestamp(second, UTC).replace(tzinfo=None) for second in SECONDS]
    x, y = np.ones((4, 1), np.float32), np.array([0, 1, 0, 1])
    seconds = np.array(utc, "datetime64[us]")
    items = [[(x[n], y[n], dates[n]) for n in range(4)] for dates in (local, utc, texts, list(seconds))]
    frames = [pandas.DataFrame({"a": x[:, 0], "label": y, "time": dates}) for dates in (local, utc, texts)]
    np.savez(tmp_path / "dates.npz", x=x, y=y, time=seconds)
    sources: list[Any] = [*items, *frames, (x, y, seconds), tmp_path / "dates.npz"]
    for number, dates in enumerate((local, utc, texts)):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pyarrow.table({"a": x[:, 0], "label": y, "time": dates}), path)
        sources.append(path)
    for source in sources:
        found = load_recording(source)
        assert found.dated
        np.testing.assert_allclose(found.times, SECONDS, rtol=0, atol=1e-6)


def test_days_of_a_parquet_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "days.parquet"
    parquet.write_table(pyarrow.table({"a": X[:, 0], "label": Y, "time": DAYS}), path)
    found = load_recording(path)
    np.testing.assert_array_equal(found.times, DAYS.astype("datetime64[s]").astype(np.float64))


# encodings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_texts_with_and_without_a_mark(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes("time,a,label\r\n1,2,Nähe\r\n2,3,日本\r\n".encode(encoding))
    found = load_recording(path)
    assert found.class_names == ("Nähe", "日本")
    assert found.feature_names == ("a",)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-be"])
def test_other_encodings(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes("time,a,label\n1,2,Nähe\n2,3,Öl\n".encode(encoding))
    with pytest.raises(InputError) as caught:
        load_recording(path)
    if encoding != "utf-16-be":  # without a mark, it is text in UTF-8 with other column names
        assert (caught.value.field, caught.value.rule) == (str(path), "text in UTF-8")


# faults of tables: what is changed, the field and the row that the error names

ROW = 17


def changed(column: str, value: Any) -> dict[str, list[Any]]:
    table = columns_of()
    table[column][ROW - 1] = value
    return table


CELLS = [
    (changed("b", None), "column 'b'", ROW),
    (changed("b", "red"), "column 'b'", ROW),
    (changed("b", "1_000"), "column 'b'", ROW),
    (changed("b", "١"), "column 'b'", ROW),
    (changed("b", "inf"), "column 'b'", ROW),
    (changed("b", "nan"), "column 'b'", ROW),
    (changed("b", 1e300), "column 'b'", ROW),
    (changed("label", None), "column 'label'", ROW),
    (changed("label", " "), "column 'label'", ROW),
    (changed("label", 0.5), "column 'label'", ROW),
    (changed("time", None), "column 'time'", ROW),
    (changed("time", "soon"), "column 'time'", ROW),
    (changed("time", "2024-01-01"), "column 'time'", ROW),
    (changed("time", -1), "column 'time'", ROW),
    (changed("client", ""), "column 'client'", ROW),
    (columns_of(time=["2024-01-01"] * 4 + ["2024-13-01"] * (COUNT - 4)), "column 'time'", 5),
]


@pytest.mark.parametrize(("table", "field", "row"), CELLS)
def test_a_wrong_cell_of_a_csv_file(
    table: dict[str, list[Any]], field: str, row: int, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "mine.csv", table)
    with pytest.raises(InputError, match=rf"in row {row}\b") as caught:
        load_recording(path)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}: ")


def test_the_row_counts_from_the_start_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are converted some at a time; an error names the row of the file."""
    monkeypatch.setattr("dufl.data.datasets.csv_files.ROWS", 5)
    for table, field, row in CELLS:
        path = write_csv(tmp_path / "mine.csv", table)
        with pytest.raises(InputError, match=rf"in row {row}\b") as caught:
            load_recording(path)
        assert caught.value.field == field
    check_equal(load_recording(as_csv(tmp_path)), make_recording("mine", X, Y, TIME, CLIENT))


@pytest.mark.parametrize("kind", ["parquet", "frame", "hugging face"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("a", None),
        ("a", float("nan")),
        ("a", 1e300),
        ("a", float("-inf")),
        ("label", None),
        ("time", None),
        ("time", -1.0),
        ("client", None),
    ],
)
def test_a_wrong_cell_of_other_tables(kind: str, column: str, value: Any, tmp_path: Path) -> None:
    source: Any
    table = changed(column, value)
    if kind == "frame":
        source = pytest.importorskip("pandas").DataFrame(table)
    elif kind == "hugging face":
        source = pytest.importorskip("datasets", exc_type=ImportError).Dataset.from_dict(table)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        source = tmp_path / "mine.parquet"
        parquet.write_table(pyarrow.table(table), source, row_group_size=4)
    with pytest.raises(InputError, match=rf"in row {ROW}\b") as caught:
        load_recording(source)
    assert caught.value.field == f"column {column!r}"


def test_texts_among_the_features_of_other_tables(tmp_path: Path) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = columns_of(b=["red"] * COUNT)
    parquet.write_table(pyarrow.table(table), tmp_path / "mine.parquet")
    for source in (tmp_path / "mine.parquet", pandas.DataFrame(table)):
        with pytest.raises(
            InputError, match="'red' in row 1: name the columns to use in `features`"
        ) as caught:
            load_recording(source)
        assert caught.value.field == "column 'b'"
        found = load_recording(source, Columns(features=("a", "c")))
        np.testing.assert_array_equal(found.samples.features, X[:, [0, 2]])
    nested = pyarrow.table(columns_of(label=[[1]] * COUNT))
    parquet.write_table(nested, tmp_path / "mine.parquet")
    with pytest.raises(InputError, match="column 'label' must be numbers, texts or dates"):
        load_recording(tmp_path / "mine.parquet")


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("", "", "got an empty file"),
        ("\n\n", "", "got an empty file"),
        ("time,a,label\n", "", "got a header without rows"),
        ("time,a,label\n1,2,0\n2,3\n", "", "3 cells in every row, got 2 in row 2"),
        ("time,a,label\n1,2,0\n2,3,1,4\n", "", "3 cells in every row, got 4 in row 2"),
        ("time,a,a,label\n1,2,2,0\n", None, "must be different, got 'a' twice"),
        ("time,label\n1,0\n2,1\n", "", "at least one column of numbers besides"),
        ("time,client,label\n1,c,0\n2,d,1\n", "", "at least one column of numbers besides"),
        ("time,a,lable\n1,2,0\n2,3,1\n", "columns.label", "did you mean 'lable'?"),
        ("when,a,label\n1,2,0\n2,3,1\n", "columns.time", "its columns are when, a, label"),
        ("time,a,label\n1,2,0\n2,3,0\n", "column 'label'", "at least 2 classes, got only 0"),
        ("time,a,label\n1,2,0\n1,3,1\n", "column 'time'", "at least two different times, got only 1"),
        ("time;a;label\n1;2;0\n", "", "separate the columns by commas"),
        ('time,a,label\n1,"2,0\n', "", "a CSV file"),
        (f"time,a,label\n1,{'9' * 200_000},0\n", "", "field larger than field limit"),
    ],
)
def test_a_wrong_table(text: str, field: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_recording(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    if field is not None:
        assert caught.value.field == (field or str(path))


def test_roles_that_contradict_each_other(tmp_path: Path) -> None:
    path = as_csv(tmp_path)
    for columns in (Columns(features=("a", "time")), Columns(client="label"), Columns(features=("a", "a"))):
        with pytest.raises(InputError, match="columns must be different columns"):
            load_recording(path, columns)
    for columns, field in (
        (Columns(client="clint"), "columns.client"),
        (Columns(features=("A",)), "columns.features"),
    ):
        with pytest.raises(InputError) as caught:
            load_recording(path, columns)
        assert caught.value.field == field
    with pytest.raises(InputError, match="at least one column of numbers"):
        load_recording(path, Columns(features=()))
    with pytest.raises(InputError, match="columns must be left out for an"):
        load_recording(as_npz(tmp_path), Columns(label="y"))


def test_a_line_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dufl.data.datasets.csv_files.LONGEST_LINE", 1_000)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"time,a,label\n" + b"1" * 100_000))
    with pytest.raises(InputError, match="lines of less than 1,000 characters"):
        load_recording(path)
    monkeypatch.setattr("dufl.data.datasets.csv_files.max_samples", lambda _: 3)
    with pytest.raises(InputError, match="at most 3 rows, what fits into memory"):
        load_recording(as_csv(tmp_path))


def test_times_must_not_descend() -> None:
    with pytest.raises(InputError) as caught:
        make_recording("mine", X, Y, TIME[::-1])
    assert (caught.value.field, caught.value.rule) == ("time", "in ascending order")
    assert "sort the rows by time" in str(caught.value)
    late = TIME.copy()
    late[ROW - 1] = 99
    with pytest.raises(InputError, match=f"in row {ROW + 1}"):
        make_recording("mine", X, Y, late)
    dates = np.array(["2024-01-02", "2024-01-01"], "datetime64[D]")
    with pytest.raises(InputError, match="2024-01-01 after 2024-01-02 in row 2"):
        make_recording("mine", X[:2], [0, 1], dates)


def test_the_first_number_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of any size it is the one that a search of the whole array finds."""
    numbers = np.zeros((40, 3), np.float32)
    numbers[[23, 31], [1, 0]] = np.inf, np.nan
    for block in (1, 7, 60, 1_000):
        monkeypatch.setattr("dufl.data.recording.BLOCK", block)
        assert first_not_finite(numbers) == (23, 1)
        assert first_not_finite(numbers[:23]) is None


def test_values_of_objects_are_classes_or_missing() -> None:
    assert make_recording("m", X[:3], np.array([10, 9, 10], object), [1, 2, 3]).class_names == ("9", "10")
    for missing in (None, float("nan"), ""):
        with pytest.raises(InputError, match="missing value in row 2"):
            make_recording("m", X[:3], np.array(["a", missing, "b"], object), [1, 2, 3])
    lists = np.empty(3, object)
    lists[:] = [[1], [2], [3]]
    with pytest.raises(InputError, match="classes: integers, texts or booleans"):
        make_recording("m", X[:3], lists, [1, 2, 3])


# .npz files of strangers


def test_arrays_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=X, y=Y, time=TIME, weight=TIME)
    with pytest.raises(InputError, match=r"and no other arrays, got time, weight, x, y$") as caught:
        load_recording(path)
    assert caught.value.field == str(path)
    np.savez(path, x=X, y=Y)
    with pytest.raises(InputError, match="got x, y"):
        load_recording(path)
    with pytest.raises(InputError, match="add an array `time` if it is a recording"):
        load_dataset(path)
    np.savez(path, x=X, y=Y, time=TIME)
    assert load_recording(path).clients is None
    with pytest.raises(InputError, match="npz with x, y, time, client"):
        load_recording(path, Columns(client="client"))
    np.savez(path, x=X, y=Y[:5], time=TIME)
    with pytest.raises(InputError, match=f"{path}: y must be 30 labels"):
        load_recording(path)


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return builtins.open, (self.path, "w")


def test_objects_in_an_npz_are_not_unpickled(tmp_path: Path) -> None:
    path, trace = tmp_path / "evil.npz", tmp_path / "trace"
    evil = np.array([Touch(str(trace))] * COUNT, object)
    np.savez(path, allow_pickle=True, x=X, y=evil, time=TIME)
    with pytest.raises(InputError, match="must be an array of numbers, texts or dates, got object"):
        load_recording(path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(evil[0])).close()  # it would have been noticed
    assert trace.exists()


def test_texts_of_an_npz_with_characters_that_do_not_exist(tmp_path: Path) -> None:
    path, labels = tmp_path / "mine.npz", io.BytesIO()
    np.save(labels, np.array(["ab"] * COUNT))
    raw = labels.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y.npy", raw[: -8 * COUNT] + b"\xff" * 8 * COUNT)
        for name, array in (("x", X), ("time", TIME)):
            member = io.BytesIO()
            np.save(member, array)
            archive.writestr(f"{name}.npy", member.getvalue())
    with pytest.raises(InputError, match=r"y in .* must be texts of valid characters"):
        load_recording(path)


# objects of strangers


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([(X[0], 1)], r"sample 1 of the dataset must be \(x, y, time\)"),
        ([{"x": X[0], "y": 1}], "sample 1 of the dataset"),
        ([{"x": X[0], "y": 1, "time": 1, "place": 2}], "got x, y, time, place"),
        ([(X[0], 0, 1), (X[0, :2], 1, 2)], "sample 2 must be like sample 1"),
        ([(X[0], 0, 1), (X[0], 1, 2, "c")], "sample 2 must be like sample 1"),
        ([("red", 0, 1)], "x of sample 1 must be an array of numbers"),
        ([(X[0], 0, 1), (X[0], 1, "soon")], "column 'time' must be a number or a date, got 'soon' in row 2"),
        ([(X[0], 0, 1), (X[0], None, 2)], "y must be classes: .*, got a missing value in row 2"),
        ([(X[0], 0, 2), (X[0], 1, 1)], "time must be in ascending order"),
        ([], "a dataset with samples"),
        ((X, Y), "the arrays must be"),
        ((X, [[1], [1, 2]], TIME), "x, y and time must be arrays"),
        (3, "source must be a name, a file"),
        (lambda: lambda: None, "source must be a name, a file"),
        ("wether", "did you mean 'weather'?"),
        ("mine.txt", "known are weather, insects"),
        ("missing.csv", "missing.csv cannot be read: No such file"),
        ("missing.parquet", "missing.parquet cannot be read"),
    ],
)
def test_a_wrong_source(source: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_recording(source)


def test_a_tensor_with_gradients_says_so() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match="x of sample 1 must be an array of numbers: Can't call numpy"):
        load_recording([(torch.ones(3, requires_grad=True), 0, 1)])


def test_images_stay_pixels() -> None:
    torch = pytest.importorskip("torch")
    pixels = GENERATOR.integers(0, 256, (4, 3, 8, 8), np.uint8)
    data = torch.utils.data.StackDataset(x=torch.from_numpy(pixels), y=[0, 1, 0, 1], time=torch.arange(4))
    found = load_recording(data)
    assert found.samples.features.dtype == np.uint8
    np.testing.assert_array_equal(found.samples.features, pixels)


def test_class_names_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    data = datasets.Dataset.from_dict(columns_of()).cast_column(
        "label", datasets.ClassLabel(names=["x", "w", "z"])
    )
    found = load_recording(data.select(range(5, 25)))
    np.testing.assert_array_equal(found.samples.features, X[5:25])
    np.testing.assert_array_equal(found.samples.labels, Y[5:25])
    assert found.class_names == ("x", "w", "z")
    split = datasets.DatasetDict({"train": data})
    with pytest.raises(InputError, match="the arrays must be"):  # one of its datasets is a source
        load_recording(split)


def test_columns_of_pandas_that_are_not_plain() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns_of())
    frame["label"] = pandas.Categorical.from_codes(Y, ["x", "y", "z"])
    frame["a"] = pandas.array([1] * COUNT, dtype="Int64")
    frame[7] = [True] * COUNT
    found = load_recording(frame)
    assert (found.class_names, found.feature_names) == (("x", "y", "z"), ("a", "b", "c", "7"))
    frame["a"] = pandas.array([1] * (COUNT - 1) + [None], dtype="Int64")
    with pytest.raises(InputError, match=f"in row {COUNT}"):
        load_recording(frame)
    with pytest.raises(InputError, match="a table with rows, got none"):
        load_recording(frame[:0])


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"^a .parquet file needs pyarrow: pip install 'dufl\[tables\]'$"):
        load_recording(tmp_path / "mine.parquet")


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    path = as_parquet(tmp_path)
    good = path.read_bytes()
    for data in (b"", b"PAR1", good[:-30], good[: len(good) // 2], bytes(len(good))):
        path.write_bytes(data)
        with pytest.raises(InputError, match="cannot be read"):
            load_recording(path)


# fuzzing

SMALL = "time,a,b,label,client\n" + "".join(
    f"{n},{n / 7:.3f},-1e3,{'xy'[n % 2]},c{n % 3}\n" for n in range(8)
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(
        st.tuples(
            st.integers(0, len(SMALL)),
            st.integers(0, 12),
            st.binary(max_size=6)
            | st.sampled_from(
                [
                    b'"',
                    b",",
                    b"\n",
                    b"\r",
                    b"\0",
                    b"nan",
                    b"-",
                    b"9" * 400,
                    b"2024-01-01",
                    b"\xef\xbb\xbf",
                    b"_",
                ]
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    packed=st.booleans(),
)
def test_mutated_csv_files(cuts: list[tuple[int, int, bytes]], packed: bool, tmp_path: Path) -> None:
    """Any bytes are a recording with finite features, or an `InputError`."""
    data = SMALL.encode()
    for start, length, new in cuts:
        data = data[:start] + new + data[start + length :]
    path = tmp_path / ("mine.csv.gz" if packed else "mine.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    try:
        found = load_recording(path)
    except InputError as error:
        message = str(error)
    else:
        message = str(path)
        assert np.isfinite(found.samples.features).all()
        assert (np.diff(found.times) >= 0).all()
        assert len(found) == len(found.times) <= data.count(b"\n") + data.count(b"\r")
    assert str(path) in message  # every error names the file


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), packed=st.booleans())
def test_mutated_packed_files(place: int, byte: int, packed: bool, tmp_path: Path) -> None:
    path = as_csv_gz(tmp_path) if packed else as_npz(tmp_path)
    data = bytearray(path.read_bytes())
    data[place % len(data)] = byte
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        load_recording(path)


# known recordings


def test_weather_comes_with_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DUFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    weather, again = load_dataset("weather"), load_recording("weather")
    assert weather.describe() == "weather: 18,159 recorded samples of shape (8,), 2 classes, time 0 to 18,158"
    check_equal(again, weather)
    assert weather.class_names == ("no rain", "rain")
    assert np.bincount(weather.samples.labels).tolist() == [12_461, 5_698]  # 31 % rain
    temperature, highest, lowest = (
        weather.samples.features[:, weather.feature_names.index(name)]
        for name in ("temperature", "highest temperature", "lowest temperature")
    )
    assert (lowest <= temperature).mean() > 0.99
    assert (temperature <= highest).mean() > 0.99
    assert weather.source is not None
    assert verify_known(RECORDINGS["weather"], weather.source)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_real_recording(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, known = real_recording(name), RECORDINGS[name]
    found = load_recording(name, data_dir=folder)
    assert (len(found), found.shape, found.num_classes) == (
        known.records,
        (known.num_features,),
        known.num_classes,
    )
    assert len(found.feature_names) in (0, known.num_features)
    path = folder / "drift" / f"{name}.npz"
    assert f"sha256:{digest(path, 'sha256')}" == known.checksum
    with np.load(path) as arrays:
        np.testing.assert_array_equal(found.samples.features, arrays["x"])
        np.testing.assert_array_equal(found.samples.labels, arrays["y"])
        np.testing.assert_array_equal(found.times, arrays["time"])
    direct = load_dataset(path)
    assert isinstance(direct, Recording)
    np.testing.assert_array_equal(direct.samples.features, found.samples.features)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A data folder with a small recording in the place of keystroke."""
    monkeypatch.delenv("DUFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    (tmp_path / "data" / "drift").mkdir(parents=True)
    path = tmp_path / "data" / "drift" / "keystroke.npz"
    np.savez(path, x=X, y=Y, time=TIME)
    checksum = f"sha256:{digest(path, 'sha256')}"
    known = replace(RECORDINGS["keystroke"], records=COUNT, num_features=3, num_classes=3, checksum=checksum)
    monkeypatch.setitem(RECORDINGS, "keystroke", known)
    return path


def state_of(folder: Path, check: bool = True) -> tuple[str, bool, int]:
    row = next(row for row in known_rows(folder, check) if row.name == "keystroke")
    return row.state, row.verified, row.records


def known_rows(folder: Path, check: bool) -> list[Any]:
    from dufl.data.datasets import find_datasets

    return [row for row in find_datasets(folder, check) if row.kind == "recording"]


def test_the_states_of_a_recording(small: Path) -> None:
    folder = small.parents[1]
    rows = {row.name: row for row in known_rows(folder, True)}
    assert list(rows) == list(RECORDINGS)
    assert (rows["weather"].state, rows["weather"].where) == ("embedded", None)
    assert (rows["insects"].state, rows["insects"].records) == ("missing", 0)
    assert (rows["keystroke"].state, rows["keystroke"].where) == ("verified", small)
    assert state_of(folder, check=False) == ("unverified", False, COUNT)
    np.savez_compressed(small, x=X, y=Y, time=TIME)  # the same arrays in another file
    assert state_of(folder) == ("unverified", False, COUNT)
    np.savez(small, x=X[:9], y=Y[:9], time=TIME[:9])
    assert state_of(folder) == ("corrupt", False, 0)
    with pytest.raises(InputError, match="the recording keystroke with 30 records of 3 features"):
        load_recording("keystroke", data_dir=folder)
    small.write_bytes(small.read_bytes()[:-9])
    assert state_of(folder) == ("corrupt", False, 0)


def test_where_a_recording_is_looked_for(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small.parents[1]
    assert load_recording("keystroke", data_dir=folder).source == small
    direct = small.rename(folder / "keystroke.npz")
    assert load_recording("keystroke", data_dir=folder).source == direct
    with pytest.raises(InputError, match=r"keystroke was not found in .*; run `dufl data fetch keystroke`"):
        load_recording("keystroke")
    monkeypatch.setenv("DUFL_DATA", str(folder))
    assert load_recording("keystroke").source == direct
    with pytest.raises(InputError) as caught:
        load_recording("keystroke", data_dir=folder / "nothing")
    assert caught.value.field == "data_dir"


def test_every_known_recording_is_cited() -> None:
    for known in RECORDINGS.values():
        assert known.page.startswith("https://")
        assert known.citation
        assert len(known.feature_names) in (0, known.num_features)
        assert len(known.class_names) in (0, known.num_classes)
        assert known.checksum.startswith("sha256:")
    assert [known.name for known in RECORDINGS.values() if known.embedded] == ["weather"]
