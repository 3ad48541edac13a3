"""What the page says about recorded data: which recording, its periods, and whether the plan asks too much.

A recording is read only for the file that the server was started with. An uploaded file reads nothing.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dufl.data.datasets import Dataset
from dufl.data.datasets.known_recordings import RECORDINGS
from dufl.data.datasets.recordings import SUFFIXES
from dufl.data.recording import Recording
from dufl.errors import DuflError
from dufl.experiment.config import Experiment
from dufl.experiment.sections import Data
from dufl.formatting import count, number
from dufl.game.plan import Plan
from dufl.plugins import is_description, is_import_path
from dufl.web.source import Source, file_name


@dataclass(frozen=True)
class About:
    """Recorded data on the page.

    Attributes:
        text: which recording, and into how many periods it is divided.
        facts: labels, values and explanations.
        warnings: where the plan and the recording disagree.
    """

    text: str
    facts: tuple[tuple[str, str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def about_recording(source: Source, experiment: Experiment, plan: Plan) -> About | None:
    """What to say about the recorded data of an experiment; None if its data is not recorded."""
    data, rounds = experiment.data, count(experiment.game.num_rounds, "round")
    if not may_be_recorded(data):
        return None
    name = f"{file_name(str(data.dataset))}, divided into {rounds}, one per period"
    if not source.is_local or is_import_path(data.dataset):
        unread = "an uploaded file" if not source.is_local else "a plugin"
        certain = "Recorded data" if data.kind == "recorded" else "Data, recorded if it has times"
        return About(f"{certain}: {name}. The recording of {unread} is not read on this page.")
    try:
        loaded = _load(data.model_dump_json())
        if not isinstance(loaded, Recording):
            return None
        return _compared(loaded, experiment, plan, rounds)
    except DuflError as error:
        return About(f"Recorded data: {name}.", warnings=(f"It cannot be used for training: {error}.",))


def may_be_recorded(data: Data) -> bool:
    """Whether the settings alone allow that data is recorded."""
    if data.kind == "simulated" or not isinstance(data.dataset, str) or is_description(data.dataset):
        return False
    return data.kind == "recorded" or data.dataset in RECORDINGS or data.dataset.endswith(SUFFIXES)


@lru_cache(maxsize=2)
def _load(settings: str) -> Dataset | Recording:
    return Data.model_validate_json(settings).load()


def _compared(recording: Recording, experiment: Experiment, plan: Plan, rounds: str) -> About:
    """The samples that there are, beside those that the plan asks for; means per client and round."""
    data = experiment.data.replay(recording, experiment.game, experiment.training.seed)
    available, last = data.available(), experiment.game.num_rounds - 1  # nothing is collected in the last
    known, there, planned = available[0], available[1 : last + 1], plan.collection[:last]
    held = experiment.game.clients.initial_volume
    missing = float(np.maximum(planned - there, 0).sum() / max(planned.sum(), 1e-300))
    warnings = []
    if missing > 0.005:
        warnings.append(
            f"The plan asks for more than was recorded: {100 * missing:.0f} % of the planned collection is "
            "missing. Use fewer clients or rounds, or lower the payment."
        )
    if (held > known).any():
        warnings.append(
            f"Clients have recorded {number(float(known.mean()))} samples each before round 0, fewer than "
            f"the planned {number(float(held.mean()))}. Training starts with what there is."
        )
    facts = (
        ("Recorded", number(float(there.mean())), "Samples recorded per client and period, mean."),
        ("Planned", number(float(planned.mean())), "Samples to collect per client and round, mean."),
        ("Before round 0", number(float(known.mean())), "Samples recorded per client in the warm-up, mean."),
    )
    text = f"Recorded data: {recording.describe()}, divided into {rounds}, one per period."
    return About(text, facts, tuple(warnings))
