"""The known recordings: what they are, where their files are, and where they are published.

`weather` comes with DUFL. The others have no licence that permits it: their files are searched for in the
data folders, as `drift/NAME.npz` or `NAME.npz`. Nobody publishes these files. They are made from the
published ones.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from dufl.data.datasets.location import data_folders
from dufl.data.datasets.untrusted_files import digest, read_arrays
from dufl.data.recording import Recording, make_recording
from dufl.errors import FetchError, InputError

FOLDER = "drift"  # of the files in a data folder
_ARRAYS = ("x", "y", "time")
_LOSING = "https://github.com/vlosing/driftDatasets"


@dataclass(frozen=True)
class KnownRecording:
    """What is known about a recording before its file is read.

    Attributes:
        name: of the recording, and of its file without `.npz`.
        title: in tables.
        records: the number of samples.
        num_features: of a sample.
        num_classes: of the labels.
        time: what one step of the time is.
        citation: the work to cite.
        page: where the data are published.
        checksum: of the file that DUFL was tested with.
        feature_names: one per feature; empty if they have no names.
        class_names: one per class; empty if they have no names.
        embedded: whether the file comes with DUFL.
    """

    name: str
    title: str
    records: int
    num_features: int
    num_classes: int
    time: str
    citation: str
    page: str
    checksum: str
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    embedded: bool = False


RECORDINGS: dict[str, KnownRecording] = {
    known.name: known
    for known in (
        KnownRecording(
            "weather",
            "Weather at Offutt Air Force Base, Bellevue, Nebraska, 1949-1999",
            18_159,
            8,
            2,
            "day",
            "U.S. National Oceanic and Atmospheric Administration; prepared by R. Elwell and R. Polikar, "
            '"Incremental learning of concept drift in nonstationary environments", IEEE Transactions on '
            "Neural Networks 22(10), 2011",
            "https://users.rowan.edu/~polikar/nse.html",
            "sha256:cde228dca3c285efbb0fc8b3b9d8602bfeb18ea6771d57dc4dc919c004c4a77f",
            (
                "temperature",
                "dew point",
                "sea-level pressure",
                "visibility",
                "mean wind",
                "maximum wind",
                "highest temperature",
                "lowest temperature",
            ),
            ("no rain", "rain"),
            embedded=True,
        ),
        KnownRecording(
            "insects",
            "Wing beats of mosquitoes and flies at changing temperature (gradual, balanced)",
            24_150,
            33,
            6,
            "record",
            'V. M. A. Souza et al., "Challenges in benchmarking stream learning algorithms with real-world '
            'data", Data Mining and Knowledge Discovery 34, 2020',
            "https://sites.google.com/view/uspdsrepository",
            "sha256:b038d8a6aed2387d99d3cd77c47de4f187546494a11a7410883da8c5fbefc23c",
        ),
        KnownRecording(
            "elec2",
            "Electricity market of New South Wales, 1996-1998",
            45_312,
            6,
            2,
            "30 minutes",
            'M. Harries, "SPLICE-2 comparative evaluation: electricity pricing", University of New South '
            "Wales, 1999",
            "https://www.openml.org/d/151",
            "sha256:ea7550a6da30d48526c3c5e304e30ad1bc88309ac31c09bf05963fad71a102c8",
            ("day of week", "period", "NSW demand", "Victoria price", "Victoria demand", "transfer"),
            ("up", "down"),
        ),
        KnownRecording(
            "keystroke",
            "Typing rhythm of a password by four users over eight sessions",
            1_600,
            10,
            4,
            "record",
            'V. M. A. Souza et al., "Data stream classification guided by clustering on nonstationary '
            'environments and extreme verification latency", SIAM International Conference on Data '
            "Mining, 2015",
            "https://sites.google.com/site/nonstationaryarchive/",
            "sha256:022e3c3f537930c001088279aa4ad4b09aec1b58889fb513853b43c9bd6d1c36",
        ),
        KnownRecording(
            "rialto",
            "Ten buildings at the Rialto bridge in Venice over 20 days",
            82_250,
            27,
            10,
            "record; ten consecutive records are one picture",
            "V. Losing, B. Hammer, H. Wersing, IEEE International Conference on Data Mining, 2016, "
            "https://ieeexplore.ieee.org/document/7837853",
            _LOSING,
            "sha256:f3a3d5e286a66e4930ed18359fc96dce35a9c0c3fc4bdbc8496238c9c1466974",
        ),
        KnownRecording(
            "outdoor",
            "Forty objects in a garden in changing light",
            4_000,
            21,
            40,
            "record",
            "V. Losing, B. Hammer, H. Wersing, International Joint Conference on Neural Networks, 2015, "
            "https://ieeexplore.ieee.org/document/7280610",
            _LOSING,
            "sha256:d9b3c5e3c929a29d6fd58d4c74a71bebfe32d7978325fd9b5ff4a3ed609c77f4",
        ),
    )
}


def find_recording(known: KnownRecording, data_dir: Path | None = None) -> Path | None:
    """The file of a recording: the one that comes with DUFL, or the first in the data folders."""
    if known.embedded:
        return Path(__file__).with_name(f"{known.name}.npz")
    return next(filter(None, (find_file(known, folder) for folder in data_folders(data_dir))), None)


def find_file(known: KnownRecording, folder: Path) -> Path | None:
    """The file of a recording in one data folder."""
    candidates = (folder / FOLDER / f"{known.name}.npz", folder / f"{known.name}.npz")
    return next((path for path in candidates if path.is_file()), None)


def load_known(name: str, data_dir: str | Path | None = None) -> Recording:
    """Load a known recording by name."""
    known = RECORDINGS[name]
    folder = None if data_dir is None else Path(data_dir).expanduser()
    if folder is not None and not folder.is_dir():
        raise InputError.of("data_dir", "a folder that exists", folder)
    path = find_recording(known, folder)
    if path is None:
        searched = ", ".join(map(str, data_folders(folder)))
        message = f"{name} was not found in {searched}; run `dufl data fetch {name}`"
        raise InputError(message, field="dataset", value=name)
    return read_known(known, path)


def read_known(known: KnownRecording, path: Path) -> Recording:
    """Read the file of a known recording; raises if it is another one by its numbers."""
    arrays = read_arrays(path, _ARRAYS)
    x, y = arrays["x"], arrays["y"]
    expected = f"{known.records:,} records of {known.num_features} features and {known.num_classes} classes"
    try:
        found = make_recording(
            known.name, x, y, arrays["time"], feature_names=known.feature_names, source=path
        )
    except InputError as error:
        raise InputError(f"{path}: {error}", field=error.field, rule=error.rule) from None
    if (len(found), *found.shape, found.num_classes) != (
        known.records,
        known.num_features,
        known.num_classes,
    ):
        got = f"{len(found):,} records of shape {found.shape} and {found.num_classes} classes"
        raise InputError.of(str(path), f"the recording {known.name} with {expected}", got)
    return replace(found, class_names=known.class_names) if known.class_names else found


def verify_known(known: KnownRecording, path: Path) -> bool:
    """Whether a file is the one that DUFL was tested with; raises if it is no such recording at all."""
    name, _, expected = known.checksum.partition(":")
    if digest(path, name) == expected:
        return True
    read_known(known, path)
    return False


def fetch_known(known: KnownRecording, folder: Path) -> Path | None:
    """The file of a known recording; None if it needs none. If it is missing, the error says where it is."""
    if known.embedded:
        return None
    path = find_file(known, folder)
    if path:
        verify_known(known, path)
        return path
    target = folder / FOLDER / f"{known.name}.npz"
    raise FetchError(
        f"{known.name} cannot be fetched: get it from {known.page} ({known.citation}) "
        f"and save it as {target} with the arrays x, y and time"
    )
