"""DUFL's own algorithms as Flower strategies: FedAvg, FedProx and FedDyn, which Flower itself does not have.

The server keeps what an algorithm knows of every client, as `dufl train` does, and sends each client what is
added to its loss. So the result is the same, on one machine or on many.
"""

from collections.abc import Iterable, Mapping
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from dufl.flower import messages
from dufl.learning.algorithm import LocalPenalty, Mean, State, Update, Vector
from dufl.learning.federation import participants
from dufl.learning.settings import Training


class AlgorithmStrategy(Strategy):
    """An algorithm of `dufl.learning` on Flower."""

    def __init__(self, settings: Training, weights: Vector, num_clients: int) -> None:
        self._settings = settings
        self._algorithm = settings.make_algorithm()
        self._number = num_clients
        self._state: State = _read_only(
            self._algorithm.init(_read_only({"weights": weights})["weights"], num_clients)
        )
        self._global: dict[str, Vector] = {}
        self._clients: Mapping[int, int] = {}

    def wait_for_clients(self, clients: Mapping[int, int]) -> None:
        """Be told the number of the client at every node."""
        self._clients = clients

    def summary(self) -> None:
        """Log what is run."""
        log(INFO, "\t└──> %s of DUFL, %s clients", self._settings.algorithm, self._number)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The model to every client that takes part, each with what is added to its loss."""
        self._global = _read_only(messages.from_arrays(arrays))
        called, _ = participants(self._settings, self._number, server_round - 1)
        there = set(grid.get_node_ids())
        nodes = {client: node for node, client in self._clients.items() if node in there}
        return [self._message(nodes[client], client, arrays, config) for client in called if client in nodes]

    def _message(self, node: int, client: int, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        penalty = self._algorithm.penalty(self._state, client)
        linear = {} if penalty.linear is None else {"linear": penalty.linear}
        told = ConfigRecord(dict(config) | {"strength": float(penalty.strength)})
        records = RecordDict({"arrays": arrays, "config": told, "penalty": messages.to_arrays(linear)})
        return Message(records, dst_node_id=node, message_type=MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The algorithm's next model; replies come in the order of clients."""
        model_buffers = Mean()
        updates = [self._update(reply, model_buffers) for reply in replies if not reply.has_error()]
        if not updates:
            return None, None
        weights, state = self._algorithm.apply(self._state, self._global["weights"], iter(updates))
        self._state = _read_only(state)
        kept = model_buffers.value(self._global["model_buffers"])
        return messages.to_arrays({"weights": weights, "model_buffers": kept}), None

    def _update(self, reply: Message, model_buffers: Mean) -> Update:
        arrays = _read_only(messages.from_arrays(reply.content["arrays"]))
        (metrics,) = reply.content.metric_records.values()
        volume = int(metrics["num-examples"])  # type: ignore[arg-type]
        model_buffers.add(arrays["model_buffers"], volume)
        client = self._clients[reply.metadata.src_node_id]
        return Update(client, volume, arrays["weights"], arrays["model_buffers"])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the server tests the model."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing."""
        return None

    def state(self) -> State:
        """What the algorithm remembers."""
        return self._state

    def restore(self, state: State) -> None:
        """Go on where another was."""
        self._state = _read_only(state)


def _read_only(vectors: Mapping[str, Any]) -> dict[str, Vector]:
    """The same vectors, which an algorithm can use and not change: what it may change is what it returns."""
    views = {name: np.asarray(vector).view() for name, vector in vectors.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def penalty_of(records: RecordDict) -> LocalPenalty:
    """What is added to a client's loss, as it was sent."""
    linear = messages.from_arrays(records["penalty"]).get("linear")
    strength: Any = records["config"]["strength"]
    return LocalPenalty(float(strength), linear)
