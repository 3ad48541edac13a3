"""DUFL: plan, pay for and train on fresh data in federated learning.

It implements T. Liu and X. Wang, *Degree of Staleness-Aware Data Updating in Federated Learning*
(ECAI 2025), and goes beyond it.

>>> import dufl
>>> plan = dufl.solve(dufl.Game(num_rounds=20, time_sensitivity=1.0))
>>> dufl.certify(plan).holds()
True
>>> run = dufl.train(dufl.load_config(None, ["game.num_rounds=3", "training.local_epochs=1"]))
>>> len(run.records)
3
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dufl.errors import (
        CapacityError,
        CertificateError,
        DuflError,
        InputError,
        NegativeUtilityWarning,
        PluginError,
    )
    from dufl.experiment.config import Config
    from dufl.experiment.config import load as load_config
    from dufl.experiment.train import Run, train
    from dufl.game.certificate import Certificate, certify_profile
    from dufl.game.client import best_response
    from dufl.game.leader import Algorithm1Options
    from dufl.game.parameters import Game, convergence_weights
    from dufl.game.plan import Plan, certify, equilibrium, solve
    from dufl.game.population import Clients, LogNormal, Uniform

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
    "Algorithm1Options": "dufl.game.leader",
    "CapacityError": "dufl.errors",
    "Certificate": "dufl.game.certificate",
    "CertificateError": "dufl.errors",
    "Clients": "dufl.game.population",
    "Config": "dufl.experiment.config",
    "DuflError": "dufl.errors",
    "Game": "dufl.game.parameters",
    "InputError": "dufl.errors",
    "LogNormal": "dufl.game.population",
    "NegativeUtilityWarning": "dufl.errors",
    "Plan": "dufl.game.plan",
    "PluginError": "dufl.errors",
    "Run": "dufl.experiment.train",
    "Uniform": "dufl.game.population",
    "best_response": "dufl.game.client",
    "certify": "dufl.game.plan",
    "certify_profile": "dufl.game.certificate",
    "convergence_weights": "dufl.game.parameters",
    "equilibrium": "dufl.game.plan",
    "load_config": "dufl.experiment.config:load",
    "solve": "dufl.game.plan",
    "train": "dufl.experiment.train",
}

__all__ = [
    "Algorithm1Options",
    "CapacityError",
    "Certificate",
    "CertificateError",
    "Clients",
    "Config",
    "DuflError",
    "Game",
    "InputError",
    "LogNormal",
    "NegativeUtilityWarning",
    "Plan",
    "PluginError",
    "Run",
    "Uniform",
    "best_response",
    "certify",
    "certify_profile",
    "convergence_weights",
    "equilibrium",
    "load_config",
    "solve",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home when it is first used, so that `import dufl` is instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dufl' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
