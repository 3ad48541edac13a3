"""DUFL on Flower: the same plan, buffers and training, on machines of their own.

DataUpdateMod       gives a ClientApp fresh data
ClientProfile       what only the client itself knows
stream_of           simulated streams that draw from a PyTorch dataset
DataUpdateStrategy  negotiates, runs any strategy, pays
Ledger              what each client is owed
Audit               whose updates bring nothing
JsonLog             an observer that logs every round as JSON lines
PrometheusExporter  an observer that serves metrics for Prometheus
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dufl.flower.audit import Audit
    from dufl.flower.client_mod import DataUpdateMod, stream_of
    from dufl.flower.client_store import ClientProfile
    from dufl.flower.ledger import Ledger
    from dufl.flower.monitoring import JsonLog
    from dufl.flower.prometheus import PrometheusExporter
    from dufl.flower.strategy import DataUpdateStrategy

_HOMES = {
    "Audit": "dufl.flower.audit",
    "ClientProfile": "dufl.flower.client_store",
    "DataUpdateMod": "dufl.flower.client_mod",
    "DataUpdateStrategy": "dufl.flower.strategy",
    "JsonLog": "dufl.flower.monitoring",
    "Ledger": "dufl.flower.ledger",
    "PrometheusExporter": "dufl.flower.prometheus",
    "stream_of": "dufl.flower.client_mod",
}
__all__ = [
    "Audit",
    "ClientProfile",
    "DataUpdateMod",
    "DataUpdateStrategy",
    "JsonLog",
    "Ledger",
    "PrometheusExporter",
    "stream_of",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is used: a ledger can be read without Flower."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
