"""The same plan, buffers and learning on Flower; what is paid, and to whom.

DataUpdateMod       gives a ClientApp fresh data
Person           what a client knows of itself
stream_of        a simulated stream for every client, from a dataset of PyTorch
DataUpdateStrategy   negotiates, runs any strategy, pays
Ledger           who is owed what
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dufl.flower.client import DataUpdateMod
    from dufl.flower.client_store import ClientProfile
    from dufl.flower.ledger import Ledger
    from dufl.flower.server import DataUpdateStrategy
    from dufl.flower.torch_data import stream_of

_HOMES = {
    "DataUpdateMod": "dufl.flower.client",
    "Ledger": "dufl.flower.ledger",
    "ClientProfile": "dufl.flower.client_store",
    "DataUpdateStrategy": "dufl.flower.server",
    "stream_of": "dufl.flower.torch_data",
}
__all__ = ["ClientProfile", "DataUpdateMod", "DataUpdateStrategy", "Ledger", "stream_of"]


def __getattr__(name: str) -> Any:
    """Load a name when it is used: a ledger can be read without Flower."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
