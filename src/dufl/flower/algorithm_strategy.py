"""DUFL's algorithms as a Flower strategy: FedAvg, FedProx and FedDyn, which Flower does not have.

The server keeps the state of the algorithm for every client, as `dufl train` does, and sends each client the
penalty that is added to its loss. The results are therefore the same on one machine and on many.
"""

from collections.abc import Iterable, Mapping
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from dufl.flower.messages import from_arrays, to_arrays
from dufl.flower.replies import WEIGHT
from dufl.learning.algorithm import LocalPenalty, Mean, State, Update, Vector
from dufl.learning.selection import Candidates, participants
from dufl.learning.settings import Training
from dufl.plugins import describe

ALGORITHM = "algorithm "  # before the names of its vectors, if the state has others


class AlgorithmStrategy(Strategy):
    """An algorithm of `dufl.learning` on Flower.

    Args:
        settings: of training; they name the algorithm.
        weights: of the model before the first round.
        num_clients: N.
    """

    weighted_by_key = WEIGHT

    def __init__(self, settings: Training, weights: Vector, num_clients: int) -> None:
        self._settings = settings
        self._algorithm = settings.make_algorithm()
        self._num_clients = num_clients
        self._state: State = _read_only(
            self._algorithm.init(_read_only({"weights": weights})["weights"], num_clients, settings)
        )
        self._global: dict[str, Vector] = {}
        self._clients: Mapping[int, int] = {}
        self._volumes: Mapping[int, int] = {}
        self._replied: dict[int, int] = {}  # the last round in which each client replied

    def set_clients(self, clients: Mapping[int, int]) -> None:
        """Set the number of the client at every node."""
        self._clients = clients

    def set_volumes(self, volumes: Mapping[int, int]) -> None:
        """Set the volume that every client committed to for the next round."""
        self._volumes = volumes

    def add_replies(self, round: int, clients: Iterable[int]) -> None:
        """Remember who replied in a round, also with updates that are not used."""
        self._replied |= dict.fromkeys(clients, round)

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        log(INFO, "\t└──> DUFL's %s, %s clients", describe(self._settings.algorithm), self._num_clients)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The model, with a penalty for each client that participates."""
        self._global = _read_only(from_arrays(arrays))
        size = max(self._num_clients, *(client + 1 for client in self._clients.values()), 0)  # some may join
        connected = set(grid.get_node_ids())
        nodes = {client: node for node, client in self._clients.items() if node in connected}
        called, _ = participants(
            self._settings, size, server_round - 1, self._candidates(sorted(nodes), server_round - 1)
        )
        return [self._message(nodes[client], client, arrays, config) for client in called if client in nodes]

    def _candidates(self, clients: list[int], round: int) -> Candidates:
        """The clients that are connected. One that is not would be selected again and again."""
        volumes = np.array([float(self._volumes.get(client, 1)) for client in clients])
        ages = round - np.array([self._replied.get(client, -1) for client in clients], np.int64)
        return Candidates(np.array(clients, np.int64), volumes, ages)

    def _message(self, node: int, client: int, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        penalty = self._algorithm.penalty(self._state, client)
        linear = {} if penalty.linear is None else {"linear": penalty.linear}
        config = ConfigRecord(dict(config) | {"strength": float(penalty.strength)})
        records = RecordDict({"arrays": arrays, "config": config, "penalty": to_arrays(linear)})
        return Message(records, dst_node_id=node, message_type=MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model of the algorithm; replies are ordered by client."""
        model_buffers = Mean()
        updates = [self._update(reply, model_buffers) for reply in replies if not reply.has_error()]
        self.add_replies(server_round - 1, (update.client for update in updates))
        if not updates:
            return None, None
        weights, state = self._algorithm.apply(self._state, self._global["weights"], iter(updates))
        self._state = _read_only(state)
        mean = model_buffers.value(self._global["model_buffers"])
        return to_arrays({"weights": weights, "model_buffers": mean}), None

    def _update(self, reply: Message, model_buffers: Mean) -> Update:
        (record,) = reply.content.array_records.values()
        (metrics,) = reply.content.metric_records.values()
        arrays, volume = _read_only(from_arrays(record)), int(metrics[WEIGHT])  # type: ignore[arg-type]
        model_buffers.add(arrays["model_buffers"], volume)
        client = self._clients[reply.metadata.src_node_id]
        steps = metrics.get("num-steps", 0)
        known = steps if isinstance(steps, int) and steps >= 0 else 0
        return Update(client, volume, arrays["weights"], arrays["model_buffers"], known)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: the server evaluates the model."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """No metrics: the server evaluates the model."""
        return None

    def state(self) -> Mapping[str, Any]:
        """The state of the algorithm and, with selection by age, of the selection."""
        if self._settings.client_selection != "age":
            return self._state
        replied = np.array(sorted(self._replied.items()), np.int64).reshape(-1, 2)
        return {f"{ALGORITHM}{name}": vector for name, vector in self._state.items()} | {"replied": replied}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        if self._settings.client_selection == "age":
            self._replied = {int(client): int(round) for client, round in state["replied"]}
            state = {n.removeprefix(ALGORITHM): v for n, v in state.items() if n.startswith(ALGORITHM)}
        self._state = _read_only(state)


def _read_only(vectors: Mapping[str, Any]) -> dict[str, Vector]:
    """Views that an algorithm cannot modify: its only output is what it returns."""
    views = {name: np.asarray(vector).view() for name, vector in vectors.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def penalty_of(records: RecordDict) -> LocalPenalty:
    """The penalty in a train message; that of FedProx, or none, if a strategy of Flower sent it."""
    linear = from_arrays(records["penalty"]).get("linear") if "penalty" in records else None
    config: Any = records.get("config", {})
    return LocalPenalty(float(config.get("strength", config.get("proximal-mu", 0.0))), linear)
