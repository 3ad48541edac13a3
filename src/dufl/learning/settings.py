"""`[training]`: how clients train and what the server makes of it."""

import os
from typing import Annotated, Literal

from pydantic import AfterValidator

from dufl.errors import InputError
from dufl.inputs import Count, Inputs, NonNegative, Number, Positive, Seed, Whole, must_be
from dufl.learning.algorithm import Algorithm
from dufl.learning.choices import check_choice
from dufl.learning.fedavg import FedAvg
from dufl.learning.feddyn import FedDyn
from dufl.learning.fedprox import FedProx
from dufl.learning.model_names import KNOWN_MODELS
from dufl.learning.own import OwnAlgorithm
from dufl.learning.policies import POLICIES

ALGORITHMS = ("fedavg", "fedprox", "feddyn")
DEVICES = ("auto", "cpu", "cuda", "mps")


def _choice(kind: str, known: tuple[str, ...]) -> AfterValidator:
    return AfterValidator(lambda name: check_choice(kind, name, known))


def _device(name: str) -> str:
    if name.partition(":")[0] not in DEVICES:
        raise InputError.of("device", f"one of {', '.join(DEVICES)} or cuda:1 and so on", repr(name))
    return name


class Training(Inputs):
    """How a federation trains; the defaults are the paper's.

    Attributes:
        algorithm: fedavg, fedprox, feddyn, or a user's own by import path.
        proximal_mu: μ of FedProx.
        feddyn_alpha: α of FedDyn.
        policy: dufl (follow the plan), static (never update), or a user's own by import path.
        model: logistic, cnn, resnet18, resnet18-coarse, or a user's own `torch.nn.Module` by import path.
        epochs: of local training in a round.
        batch_size: samples a step; a buffer smaller than that is one batch.
        learning_rate: of local SGD.
        momentum: of local SGD.
        participation: the share of clients, drawn anew for every round, that take part.
        dropout: the probability that a client that should take part does not answer.
        precision: bf16 computes with bfloat16 where torch thinks it safe; weights stay float32.
        seed: same seed, same result.
        device: where torch computes; auto is the first accelerator there is, or else the CPU.
        workers: how many cores train; 0 is all. The result does not depend on it.
        checkpoint_every: rounds from one checkpoint to the next.
    """

    algorithm: Annotated[str, _choice("algorithm", ALGORITHMS)] = "fedavg"
    proximal_mu: NonNegative = 0.01
    feddyn_alpha: Positive = 0.1
    policy: Annotated[str, _choice("policy", POLICIES)] = "dufl"
    model: Annotated[str, _choice("model", KNOWN_MODELS)] = "logistic"
    local_epochs: Count = 20
    batch_size: Count = 64
    learning_rate: Positive = 0.01
    momentum: Annotated[Number, must_be("in [0, 1)", lambda v: 0 <= v < 1)] = 0.0
    fraction_train: Annotated[Number, must_be("in (0, 1]", lambda v: 0 < v <= 1)] = 1.0
    client_dropout: Annotated[Number, must_be("in [0, 1)", lambda v: 0 <= v < 1)] = 0.0
    precision: Literal["float32", "bf16"] = "float32"
    seed: Seed = 0
    device: Annotated[str, AfterValidator(_device)] = "auto"
    workers: Annotated[Whole, must_be(">= 0", lambda v: v >= 0)] = 0
    checkpoint_every: Count = 10

    @property
    def num_workers(self) -> int:
        """How many cores train."""
        return self.workers or os.cpu_count() or 1

    @property
    def compiled(self) -> bool:
        """Whether our own kernel trains: the logistic model, on the CPU, in float32."""
        return self.model == "logistic" and self.device in ("auto", "cpu") and self.precision == "float32"

    def make_algorithm(self) -> Algorithm:
        """The algorithm that was chosen."""
        if self.algorithm == "fedavg":
            return FedAvg()
        if self.algorithm == "fedprox":
            return FedProx(self.proximal_mu)
        if self.algorithm == "feddyn":
            return FedDyn(self.feddyn_alpha)
        return OwnAlgorithm(self.algorithm)
