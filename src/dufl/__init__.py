"""DUFL: plan, pay for and train on fresh data in federated learning.

It implements T. Liu and X. Wang, *Degree of Staleness-Aware Data Updating in Federated Learning*
(ECAI 2025), and goes beyond it.

>>> import dufl
>>> plan = dufl.solve(dufl.Game(num_rounds=20, time_sensitivity=1.0))
>>> dufl.certify(plan).holds()
True
>>> run = dufl.train(dufl.Game(num_rounds=3), training=dufl.Training(local_epochs=1), policy="static")
>>> len(run.records)
3
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dufl.calibration.calibrate import Calibration, calibrate
    from dufl.data.client_data import Period
    from dufl.data.datasets import Dataset, load_recording
    from dufl.data.recording import Recording
    from dufl.data.samples import Samples
    from dufl.errors import (
        CapacityError,
        CertificateError,
        DuflError,
        InputError,
        NegativeUtilityWarning,
        PluginError,
    )
    from dufl.experiment.callbacks import Action, Callback, EarlyStopping, TensorBoard
    from dufl.experiment.compare import compare, grid
    from dufl.experiment.comparison import Cell, Comparison
    from dufl.experiment.config import Experiment
    from dufl.experiment.sections import Data, Leader
    from dufl.experiment.sweep import sweep
    from dufl.experiment.train import Run, train
    from dufl.game.certificate import Certificate, certify_profile
    from dufl.game.client import best_response
    from dufl.game.endless import StationaryPlan, solve_endless
    from dufl.game.leader import Algorithm1Options
    from dufl.game.loss import PowerLaw
    from dufl.game.parameters import Game, convergence_weights
    from dufl.game.plan import Offer, Plan, certify, equilibrium, solve
    from dufl.game.population import Clients, LogNormal, Uniform
    from dufl.learning.algorithm import LocalPenalty, Update
    from dufl.learning.fedavg import FedAvg
    from dufl.learning.feddyn import FedDyn
    from dufl.learning.federation import Record
    from dufl.learning.fedprox import FedProx
    from dufl.learning.policies import AgePrice, Periodic, Planned, RandomStrategy, Window, ZeroStrategy
    from dufl.learning.settings import Training

__version__ = "0.1.0"

try:
    import fcntl  # noqa: F401
except ImportError:
    raise ImportError(
        "DUFL needs a POSIX system, such as Linux or macOS; on Windows, use the Windows Subsystem for Linux"
    ) from None

if not any(os.access(place, os.W_OK) for place in (os.path.dirname(__file__), os.path.expanduser("~"))):
    # Nowhere to keep compiled kernels, as in a read-only container: keep them as long as the machine runs.
    from tempfile import gettempdir

    os.environ.setdefault("NUMBA_CACHE_DIR", os.path.join(gettempdir(), f"dufl-{os.getuid()}"))

_HOMES = {
    "Action": "dufl.experiment.callbacks",
    "AgePrice": "dufl.learning.policies",
    "Algorithm1Options": "dufl.game.leader",
    "Calibration": "dufl.calibration.calibrate",
    "Callback": "dufl.experiment.callbacks",
    "CapacityError": "dufl.errors",
    "Cell": "dufl.experiment.comparison",
    "Certificate": "dufl.game.certificate",
    "CertificateError": "dufl.errors",
    "Clients": "dufl.game.population",
    "Comparison": "dufl.experiment.comparison",
    "Data": "dufl.experiment.sections",
    "Dataset": "dufl.data.datasets",
    "DuflError": "dufl.errors",
    "EarlyStopping": "dufl.experiment.callbacks",
    "Experiment": "dufl.experiment.config",
    "FedAvg": "dufl.learning.fedavg",
    "FedDyn": "dufl.learning.feddyn",
    "FedProx": "dufl.learning.fedprox",
    "Game": "dufl.game.parameters",
    "InputError": "dufl.errors",
    "Leader": "dufl.experiment.sections",
    "LocalPenalty": "dufl.learning.algorithm",
    "LogNormal": "dufl.game.population",
    "NegativeUtilityWarning": "dufl.errors",
    "Offer": "dufl.game.plan",
    "Plan": "dufl.game.plan",
    "Periodic": "dufl.learning.policies",
    "Planned": "dufl.learning.policies",
    "PluginError": "dufl.errors",
    "PowerLaw": "dufl.game.loss",
    "Period": "dufl.data.client_data",
    "RandomStrategy": "dufl.learning.policies",
    "Record": "dufl.learning.federation",
    "Recording": "dufl.data.recording",
    "Run": "dufl.experiment.train",
    "Samples": "dufl.data.samples",
    "StationaryPlan": "dufl.game.endless",
    "TensorBoard": "dufl.experiment.callbacks",
    "Training": "dufl.learning.settings",
    "Uniform": "dufl.game.population",
    "Update": "dufl.learning.algorithm",
    "Window": "dufl.learning.policies",
    "ZeroStrategy": "dufl.learning.policies",
    "best_response": "dufl.game.client",
    "calibrate": "dufl.calibration.calibrate",
    "certify": "dufl.game.plan",
    "certify_profile": "dufl.game.certificate",
    "compare": "dufl.experiment.compare",
    "convergence_weights": "dufl.game.parameters",
    "equilibrium": "dufl.game.plan",
    "grid": "dufl.experiment.compare",
    "load_recording": "dufl.data.datasets",
    "solve": "dufl.game.plan",
    "solve_endless": "dufl.game.endless",
    "sweep": "dufl.experiment.sweep",
    "train": "dufl.experiment.train",
}

__all__ = [
    "Action",
    "AgePrice",
    "Algorithm1Options",
    "Calibration",
    "Callback",
    "CapacityError",
    "Cell",
    "Certificate",
    "CertificateError",
    "Clients",
    "Comparison",
    "Data",
    "Dataset",
    "DuflError",
    "EarlyStopping",
    "Experiment",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "Game",
    "InputError",
    "Leader",
    "LocalPenalty",
    "LogNormal",
    "NegativeUtilityWarning",
    "Offer",
    "Period",
    "Periodic",
    "Plan",
    "Planned",
    "PluginError",
    "PowerLaw",
    "RandomStrategy",
    "Record",
    "Recording",
    "Run",
    "Samples",
    "StationaryPlan",
    "TensorBoard",
    "Training",
    "Uniform",
    "Update",
    "Window",
    "ZeroStrategy",
    "best_response",
    "calibrate",
    "certify",
    "certify_profile",
    "compare",
    "convergence_weights",
    "equilibrium",
    "grid",
    "load_recording",
    "solve",
    "solve_endless",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home when it is first used, so that `import dufl` is instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dufl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
