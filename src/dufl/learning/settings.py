"""`Training`: how clients train and how the server aggregates; the section `[training]` of a file."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dufl.cores import cores
from dufl.errors import InputError
from dufl.inputs import Count, Inputs, NonNegative, Number, Positive, Seed, Whole, must_be
from dufl.learning.age_weights import AgeWeighting
from dufl.learning.algorithm import Algorithm
from dufl.learning.augmentation import Augmentation
from dufl.learning.fedavg import FedAvg
from dufl.learning.feddyn import FedDyn
from dufl.learning.fedprox import FedProx
from dufl.learning.own import OwnAlgorithm
from dufl.learning.selection import ClientSelection
from dufl.plugins import Spec, check_spec, describe

ALGORITHMS = ("fedavg", "fedprox", "feddyn")
MODELS = ("logistic", "linear", "cnn", "resnet18", "resnet18-coarse")
LOSSES = ("auto", "cross_entropy", "squared_error")
DEVICES = ("auto", "cpu", "cuda", "mps")


def _plugin(kind: str, known: tuple[str, ...]) -> Any:
    return AfterValidator(partial(check_spec, kind, known=known))


def _metrics(value: object) -> dict[str, Spec]:
    """Metrics by name; metrics in a list are named after their functions."""
    if isinstance(value, Mapping):
        named = dict(value)
    elif isinstance(value, list | tuple):
        named = {_metric_name(spec): spec for spec in value}
    else:
        raise InputError.of("metrics", "functions by name, or a list of functions", value, text=repr(value))
    for name, spec in named.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError.of("metrics", "functions by names that are identifiers", name, text=repr(name))
        if not callable(spec):
            check_spec("metric", spec, ())
    return named


def _metric_name(spec: Spec) -> str:
    name = describe(spec).strip("<>").rpartition(":")[2].removesuffix(" object")
    return name if name.isidentifier() else type(spec).__name__


def _device(name: str) -> str:
    if name.partition(":")[0] not in DEVICES:
        raise InputError.of("device", f"one of {', '.join(DEVICES)} or a device such as cuda:1", repr(name))
    return name


class Training(Inputs):
    """How a federation trains; the defaults are the paper's.

    Attributes:
        algorithm: "fedavg", "fedprox", "feddyn", or a user-defined one; see `dufl.learning.algorithm`.
        proximal_mu: μ of FedProx.
        feddyn_alpha: α of FedDyn.
        model: "logistic", "cnn", "resnet18", "resnet18-coarse", "linear" for regression, or a user-defined
            `torch.nn.Module`: an object, or a class or function that is called with `shape` and
            `num_classes` (1 for regression) if it accepts them.
        loss: "cross_entropy" for classes, "squared_error" for regression, "auto" for whichever fits the
            labels, or a function of (logits, labels) that returns the mean loss of a batch. For regression
            it is called with (predictions, labels).
        metrics: functions of (labels, logits) on the test samples, by name or in a list. For regression they
            are called with (labels, predictions).
        local_epochs: epochs of local training per round.
        batch_size: samples per step; a smaller buffer is one batch.
        learning_rate: of local SGD, in round 0.
        learning_rate_decay: the factor by which the learning rate changes from each round to the next.
        momentum: of local SGD.
        weight_decay: λ of the term λ/2·‖w‖² that is added to a client's loss.
        augmentation: "crop" moves every image by up to an eighth of its size, "flip" mirrors every other
            one, "crop-flip" does both; anew in each epoch. See `dufl.learning.augmentation`.
        age_weighting: how samples count in local training: "none" for equally, or less with age: "linear" or
            "exponential"; see `dufl.learning.age_weights`.
        age_scale: the number of rounds after which a fresh sample counts nothing (linear) or half
            (exponential).
        fraction_train: the fraction of clients, selected anew in every round, that train.
        client_selection: how they are selected: at "random", or by the "age" of what the server has learned
            from each; see `dufl.learning.selection`.
        client_dropout: the probability that a sampled client does not reply.
        precision: "bf16" computes in bfloat16 where torch considers it safe; weights stay in float32.
            "auto" is "bf16" if the processor has instructions for it, otherwise "float32".
        seed: of data, initial weights, sampling and local training.
        device: where torch computes: "cpu", "cuda", "cuda:1", "mps"; "auto" is an accelerator if there is
            one, otherwise the CPU.
        workers: the number of processes or threads; 0 is one per core. Results do not depend on it.
        checkpoint_every: the number of rounds between two checkpoints.
    """

    algorithm: Annotated[Spec, _plugin("algorithm", ALGORITHMS)] = "fedavg"
    proximal_mu: NonNegative = 0.01
    feddyn_alpha: Positive = 0.1
    model: Annotated[Spec, _plugin("model", MODELS)] = "logistic"
    loss: Annotated[Spec, _plugin("loss", LOSSES)] = "auto"
    metrics: Annotated[Any, BeforeValidator(_metrics)] = Field(default_factory=dict)  # a mapping
    local_epochs: Count = 20
    batch_size: Count = 64
    learning_rate: Positive = 0.01
    learning_rate_decay: Annotated[Number, must_be("in (0, 1]", lambda v: 0 < v <= 1)] = 1.0
    momentum: Annotated[Number, must_be("in [0, 1)", lambda v: 0 <= v < 1)] = 0.0
    weight_decay: NonNegative = 0.0
    augmentation: Augmentation = "none"
    age_weighting: AgeWeighting = "none"
    age_scale: Positive = 10.0
    fraction_train: Annotated[Number, must_be("in (0, 1]", lambda v: 0 < v <= 1)] = 1.0
    client_selection: ClientSelection = "random"
    client_dropout: Annotated[Number, must_be("in [0, 1)", lambda v: 0 <= v < 1)] = 0.0
    precision: Literal["float32", "bf16", "auto"] = "float32"
    seed: Seed = 0
    device: Annotated[str, AfterValidator(_device)] = "auto"
    workers: Annotated[Whole, must_be(">= 0", lambda v: v >= 0)] = 0
    checkpoint_every: Count = 10

    @model_validator(mode="after")
    def _weights_need_a_loss_per_sample(self) -> Self:
        if self.age_weighting != "none" and not self._known_loss:
            rule = "'none' with a loss of your own, which returns the mean of a batch"
            raise InputError.of("age_weighting", rule, self.age_weighting, text=repr(self.age_weighting))
        return self

    @property
    def _known_loss(self) -> bool:
        return isinstance(self.loss, str) and self.loss in LOSSES

    @property
    def num_workers(self) -> int:
        """The number of workers: `workers`, or one per core."""
        return self.workers or cores()

    @property
    def compiled(self) -> bool:
        """Whether the compiled kernel is used: a linear model, its loss and plain samples, on the CPU."""
        plain = self.model in ("logistic", "linear") and self._known_loss and self.augmentation == "none"
        return plain and self.device in ("auto", "cpu") and self.precision != "bf16"

    def rate(self, round: int) -> float:
        """The learning rate of a round: η·decay^t."""
        return self.learning_rate * self.learning_rate_decay**round

    def make_algorithm(self) -> Algorithm:
        """The algorithm that these settings describe."""
        known: dict[str, Callable[[], Algorithm]] = {
            "fedavg": FedAvg,
            "fedprox": lambda: FedProx(self.proximal_mu),
            "feddyn": lambda: FedDyn(self.feddyn_alpha),
        }
        if isinstance(self.algorithm, str) and self.algorithm in known:
            return known[self.algorithm]()
        return OwnAlgorithm(self.algorithm)
