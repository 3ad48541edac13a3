"""Live sources: streams that read what other programs write, from growing folders or a message broker."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dufl.data.live.folder_stream import FolderStream
    from dufl.data.live.mqtt_stream import MqttStream
    from dufl.data.live.table_stream import TableStream

__all__ = ["FolderStream", "MqttStream", "TableStream"]
_HOMES = {"FolderStream": "folder_stream", "MqttStream": "mqtt_stream", "TableStream": "table_stream"}


def __getattr__(name: str) -> Any:
    """A stream, imported when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
