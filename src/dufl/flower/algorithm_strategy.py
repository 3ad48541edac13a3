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
from dufl.learning.algorithm import LocalPenalty, Mean, State, Update, Vector
from dufl.learning.federation import participants
from dufl.learning.settings import Training
from dufl.plugins import describe


class AlgorithmStrategy(Strategy):
    """An algorithm of `dufl.learning` on Flower.

    Args:
        settings: of training; they name the algorithm.
        weights: of the model before the first round.
        num_clients: N.
    """

    def __init__(self, settings: Training, weights: Vector, num_clients: int) -> None:
        self._settings = settings
        self._algorithm = settings.make_algorithm()
        self._num_clients = num_clients
        self._state: State = _read_only(
            self._algorithm.init(_read_only({"weights": weights})["weights"], num_clients, settings)
        )
        self._global: dict[str, Vector] = {}
        self._clients: Mapping[int, int] = {}

    def set_clients(self, clients: Mapping[int, int]) -> None:
        """Set the number of the client at every node."""
        self._clients = clients

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        log(INFO, "\t└──> DUFL's %s, %s clients", describe(self._settings.algorithm), self._num_clients)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The model, with a penalty for each client that participates."""
        self._global = _read_only(from_arrays(arrays))
        size = max(self._num_clients, *(client + 1 for client in self._clients.values()), 0)  # some may join
        called, _ = participants(self._settings, size, server_round - 1)
        connected = set(grid.get_node_ids())
        nodes = {client: node for node, client in self._clients.items() if node in connected}
        return [self._message(nodes[client], client, arrays, config) for client in called if client in nodes]

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
        if not updates:
            return None, None
        weights, state = self._algorithm.apply(self._state, self._global["weights"], iter(updates))
        self._state = _read_only(state)
        mean = model_buffers.value(self._global["model_buffers"])
        return to_arrays({"weights": weights, "model_buffers": mean}), None

    def _update(self, reply: Message, model_buffers: Mean) -> Update:
        arrays = _read_only(from_arrays(reply.content["arrays"]))
        (metrics,) = reply.content.metric_records.values()
        volume = int(metrics["num-examples"])  # type: ignore[arg-type]
        model_buffers.add(arrays["model_buffers"], volume)
        client = self._clients[reply.metadata.src_node_id]
        steps = int(metrics.get("num-steps", 0))  # type: ignore[arg-type]
        return Update(client, volume, arrays["weights"], arrays["model_buffers"], steps)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: the server evaluates the model."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """No metrics: the server evaluates the model."""
        return None

    def state(self) -> State:
        """The state of the algorithm."""
        return self._state

    def restore(self, state: State) -> None:
        """Continue from a state."""
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
