"""A mosquitto broker on a free port of the loopback interface, with its sessions in a file."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_mosquitto = pytest.mark.skipif(
    MOSQUITTO is None, reason="mosquitto is not installed: run tools/mosquitto"
)


class Broker:
    """A broker that can be stopped, killed, frozen and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._config = folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence true"]
        lines += [f"persistence_location {folder}/", "autosave_interval 1"]
        lines += ["max_queued_messages 0"] + ["user root"] * (os.getuid() == 0)
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise TimeoutError("mosquitto did not start")

    def send(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the process; SIGTERM lets it save its sessions, SIGKILL does not."""
        if self._process is not None:
            self.send(number)
            self._process.wait(30)
            self._process = None

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.send(signal.SIGCONT)
            self.stop(signal.SIGKILL)

    def publish(self, *payloads: Any, topic: str = "samples") -> None:
        """Publish objects as JSON, or bytes as they are; returns when the broker has them."""
        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
        client.max_inflight_messages_set(1000)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        try:
            for payload in payloads:
                content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
                sent = client.publish(topic, content, qos=1)
            if payloads:
                sent.wait_for_publish(60)
                assert sent.is_published()
        finally:
            client.disconnect()
            client.loop_stop()
