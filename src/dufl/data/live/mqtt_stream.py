"""An MQTT topic as a stream; needs the extra `mqtt`.

The broker keeps a session under the client id and delivers each message at least once (QoS 1), also messages
that were published while the client was down. A message is acknowledged after `confirm`, when its sample is
stored. A message that was stored but not acknowledged is delivered again. The position has the keys of the
last stored messages; a message with such a key is dropped and acknowledged.

The key of a message is the `id` in its payload. Without an id, it is the packet identifier of MQTT with a
digest of the message, which counts only for messages that the broker marks as duplicates. Therefore:

- with ids, a sample is stored once, whatever a publisher or a broker repeats within the last `window`
  messages, also after a crash of either;
- without ids, a sample is stored once if the publisher sends it once and the broker keeps its session.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from dufl.data.live.message import Sample, parse_message
from dufl.data.live.positions import parse_position
from dufl.data.recording import Task
from dufl.data.samples import Samples
from dufl.errors import InputError


@dataclass(eq=False)
class _Message:
    """A sample that is not stored yet.

    Attributes:
        sample: features and label.
        key: what identifies the message.
        sure: whether a stored message with the same key is this one, and not another one.
        packet: the number to acknowledge; None if it belongs to a lost connection or needs no answer.
    """

    sample: Sample
    key: str
    sure: bool
    packet: int | None


class MqttStream:
    """Samples from an MQTT 5 broker, one per message: ``{"x": [0.5, 1.5], "y": 1, "id": "sensor-7/18"}``.

    `x` has numbers of the given shape, `y` is the label. `id` is optional: a text or an integer, different
    for every message of the topic. Other entries, such as `time`, are ignored. Messages of any other form
    are counted in `garbage` and dropped.

    Keep one object per client id and process: a broker closes the older of two connections with the same id.

    Args:
        topic: to subscribe to; may contain wildcards.
        shape: of one sample's features.
        client_id: the name of the session at the broker; the same after a restart.
        host: of the broker.
        port: of the broker.
        task: "classification", with integers as labels, or "regression", with any numbers.
        wait: seconds without a message after which `collect` returns what it has.
        window: how many messages may wait to be stored, and how many keys a position has.
        configure: is called with the paho client before it connects, for example to set a password or TLS.
    """

    portion = 1

    def __init__(
        self,
        topic: str,
        shape: int | tuple[int, ...],
        client_id: str,
        host: str = "localhost",
        port: int = 1883,
        *,
        task: Task = "classification",
        wait: float = 10.0,
        window: int = 10_000,
        configure: Callable[[Any], object] | None = None,
    ) -> None:
        if not client_id:
            raise InputError.of("client_id", "a name of the session", repr(client_id))
        if task not in ("classification", "regression"):
            raise InputError.of("task", "'classification' or 'regression'", repr(task))
        if not 1 <= window <= 65_535:
            raise InputError.of("window", "in 1 … 65535", window)
        self.collected = self.garbage = self.repeated = self.dropped = 0
        self._topic, self._task, self._wait, self._window = topic, task, wait, window
        self._shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._broker, self._problem = f"{host}:{port}", "no connection yet"
        self._changed = threading.Condition()
        self._messages: list[_Message] = []  # not stored yet, in the order of arrival
        self._next = 0  # how many of them have been collected
        self._known: dict[str, _Message] = {}
        self._stored: dict[str, None] = {}  # the keys of the last stored messages
        self._turns = 0  # of seek; a call of collect ends with its turn
        self._client = self._new_client(client_id)
        if configure is not None:
            configure(self._client)
        self._connect(host, port)

    def collect(self, count: int, round: int) -> Samples:
        """The next `count` samples; fewer if none came for `wait` seconds.

        Raises:
            ConnectionError: if there are none and the broker cannot be reached.
        """
        with self._changed:
            turn, seen, until = self._turns, len(self._messages), time.monotonic() + self._wait
            while len(self._messages) < self._next + count and turn == self._turns:
                if len(self._messages) > seen:
                    seen, until = len(self._messages), time.monotonic() + self._wait
                if not self._changed.wait(max(until - time.monotonic(), 0)) and time.monotonic() >= until:
                    break
            end = self._next + count if turn == self._turns else self._next
            taken = self._messages[self._next : end]
            if count and not taken and self._problem:
                raise ConnectionError(f"MQTT broker {self._broker}: {self._problem}")
            self._next += len(taken)
            self.collected += len(taken)
        return self._samples([message.sample for message in taken])

    def resume(self, collected: int) -> None:
        """Nothing to skip: the broker delivers only what has not been acknowledged."""
        self.collected = collected

    def position(self, collected: int | None = None) -> str:
        """The keys of the last messages, up to and with a number of samples."""
        with self._changed:
            upto = self.collected if collected is None else collected
            count = self._next - (self.collected - upto)
            included = self._messages[: max(count, 0)]
            for message in included:
                message.sure = True
            keys = [*self._stored, *(message.key for message in included)]
        return json.dumps({"collected": upto, "keys": keys[-self._window :]})

    def seek(self, position: str) -> None:
        """Collect what is not in the position; what is, is acknowledged."""
        with self._changed:
            stored = self._settle(position)
            self._next, self.collected = 0, self._read(position)[0]
            self._turns += 1
            self._changed.notify_all()
        self._acknowledge(stored)

    def confirm(self, position: str) -> None:
        """Acknowledge the messages up to this position."""
        with self._changed:
            stored = self._settle(position)
        self._acknowledge(stored)

    def _settle(self, position: str) -> list[_Message]:
        """Remove and return the messages that are stored."""
        _, self._stored = self._read(position)
        stored = [message for message in self._messages if message.sure and message.key in self._stored]
        gone = set(map(id, stored))
        self._next -= sum(id(message) in gone for message in self._messages[: self._next])
        self._messages = [message for message in self._messages if id(message) not in gone]
        self._known = {message.key: message for message in self._messages}
        return stored

    def _read(self, position: str) -> tuple[int, dict[str, None]]:
        """The number of samples of a position, and its keys."""
        if not position:
            return 0, {}
        found = parse_position(position, "collected", "keys")
        return int(found["collected"]), dict.fromkeys(map(str, found["keys"]))

    def close(self) -> None:
        """Disconnect; the broker keeps the session."""
        self._client.disconnect()
        self._client.loop_stop()

    def __enter__(self) -> "MqttStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _new_client(self, client_id: str) -> Any:
        try:
            from paho.mqtt.client import Client, MQTTv5
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError:
            raise InputError("MQTT needs paho-mqtt: pip install 'dufl[mqtt]'") from None
        client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5, manual_ack=True)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_connect_fail, client.on_message = self._on_connect_fail, self._on_message
        client.on_subscribe = self._on_subscribe
        client.reconnect_delay_set(1, 30)
        return client

    def _connect(self, host: str, port: int) -> None:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 0xFFFFFFFF  # never
        properties.ReceiveMaximum = self._window
        self._client.connect_async(host, port, keepalive=30, clean_start=False, properties=properties)
        self._client.loop_start()

    def _on_connect(self, client: Any, _: Any, flags: Any, reason: Any, properties: Any) -> None:
        from paho.mqtt.subscribeoptions import SubscribeOptions

        self._problem = str(reason) if reason.is_failure else "not subscribed yet"
        if not reason.is_failure:  # messages that a broker retains come with the first subscription only
            client.subscribe(self._topic, options=SubscribeOptions(qos=1, retainHandling=1))

    def _on_subscribe(self, client: Any, _: Any, packet: int, reasons: Any, properties: Any) -> None:
        refused = [str(reason) for reason in reasons if reason.is_failure]
        self._problem = f"subscription refused: {refused[0]}" if refused else ""

    def _on_connect_fail(self, client: Any, _: Any) -> None:
        self._problem = "no connection"

    def _on_disconnect(self, client: Any, _: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            self._problem = f"disconnected: {reason}"
            for message in self._messages:  # the broker delivers them again
                message.packet = None

    def _on_message(self, client: Any, _: Any, received: Any) -> None:
        """Add a message, unless it is garbage or there already; what is not added is acknowledged."""
        found = parse_message(received.payload, self._shape, self._task)
        packet = received.mid if received.qos else None
        if found is None:
            self.garbage += 1
            return self._answer(packet)
        digest = hashlib.sha256(received.topic.encode() + b"\0" + received.payload).hexdigest()[:16]
        key = f"{received.mid} {digest}" if found.id is None else f"id {found.id}"
        message = _Message(found.sample, key, found.id is not None or received.dup, packet)
        with self._changed:
            added = self._add(message)
        return None if added else self._answer(packet)

    def _add(self, message: _Message) -> bool:
        """Whether the message is to be acknowledged later, and not now."""
        known = self._known.get(message.key) if message.sure else None
        if known is not None and known.packet is None and message.packet is not None:
            known.packet = message.packet  # delivered again after a lost connection
            return True
        if known is not None or (message.sure and message.key in self._stored):
            self.repeated += 1
            return False
        if message.packet is None and len(self._messages) >= self._window:
            self.dropped += 1  # published with QoS 0, without a promise
            return False
        self._messages.append(message)
        self._known[message.key] = message
        self._changed.notify_all()
        return True

    def _acknowledge(self, messages: list[_Message]) -> None:
        for message in messages:
            self._answer(message.packet)

    def _answer(self, packet: int | None) -> None:
        if packet is not None:
            self._client.ack(packet, 1)

    def _samples(self, found: list[Sample]) -> Samples:
        features = np.array([sample.features for sample in found], np.float32)
        kind = np.int64 if self._task == "classification" else np.float32
        labels = np.array([sample.label for sample in found], kind)
        return Samples(features.reshape(len(found), *self._shape), labels)
