"""Local training with torch, for any model: SGD on a client's samples with the algorithm's penalty."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite.binding import get_host_cpu_features
from torch import nn
from torch.nn import functional

from dufl.errors import InputError
from dufl.learning.algorithm import LocalPenalty, Vector
from dufl.learning.augmentation import augment, moves
from dufl.learning.models import build, check_logits
from dufl.learning.settings import Training
from dufl.learning.task import Task
from dufl.plugins import calling, describe, resolve

_MADE_FOR_BFLOAT16 = ("avx512bf16", "amx-bf16", "bf16")  # the last one on ARM; names of LLVM
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class LocalModel:
    """A torch model that loads the given weights, trains or evaluates, and returns weights.

    It computes on one CPU thread or on an accelerator: on small batches a second thread costs more time than
    it saves, and other processes use the other cores.
    """

    def __init__(self, settings: Training, device: str, shape: tuple[int, ...], num_classes: int) -> None:
        torch.set_num_threads(1)
        if device != "cpu":  # one CPU thread is always deterministic
            torch.use_deterministic_algorithms(True, warn_only=True)
        self._settings = settings
        self._shape, self._classes = shape, num_classes
        self._device = torch.device(device)
        self._model = build(settings.model, shape, num_classes, settings.seed).to(self._device)
        self._parameters = list(self._model.parameters())
        self._buffers = list(self._model.buffers())
        self._batch_norm = next((m for m in self._model.modules() if isinstance(m, _BATCH_NORMS)), None)
        self._loss = _loss(settings)
        self._half = uses_bfloat16(settings.precision, device)
        self._format = torch.channels_last if len(shape) == 3 else torch.contiguous_format

    def named(self, weights: Vector, model_buffers: Vector) -> dict[str, npt.NDArray[Any]]:
        """The weights as the model's own `state_dict`."""
        self._load(weights, model_buffers)
        return {name: np.array(tensor.cpu()) for name, tensor in self._model.state_dict().items()}

    def state(self) -> tuple[Vector, Vector]:
        """The weights and buffers, each as one vector."""
        return _flat(self._parameters), _flat(self._buffers)

    def train(
        self, weights: Vector, model_buffers: Vector, features: npt.NDArray[np.float32], task: Task
    ) -> tuple[Vector, Vector, int]:
        """The weights and model buffers after local training, and the number of SGD steps."""
        with calling("model", self._settings.model, f"training client {task.client} in round {task.round}"):
            return self._train(weights, model_buffers, features, task)

    def _train(
        self, weights: Vector, model_buffers: Vector, features: npt.NDArray[np.float32], task: Task
    ) -> tuple[Vector, Vector, int]:
        settings, model = self._settings, self._model
        self._load(weights, model_buffers)
        model.train()
        torch.manual_seed(_torch_seed(settings.seed, task.client, task.round))
        images, labels = self._tensor(features), torch.from_numpy(task.labels).to(self._device)
        shares, moves = self._shares(task), self._moves(task)
        start = [parameter.detach().clone() for parameter in self._parameters]
        penalty = task.penalty.with_decay(settings.weight_decay, weights)
        linear, rate = self._split(penalty.linear), settings.rate(task.round)
        velocity = [torch.zeros_like(parameter) for parameter in start] if settings.momentum else []
        steps = 0
        for epoch, order in enumerate(torch.from_numpy(task.shuffles(settings)).to(self._device)):
            for batch in self._batches(order):
                model.zero_grad()
                seen = images[batch] if moves is None else augment(images[batch], moves[epoch, batch])
                with self._precision():
                    logits = self._logits(seen)
                    if shares is None:
                        loss = self._loss(logits, labels[batch])
                    else:
                        loss = (shares[batch] * _losses(logits, labels[batch])).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                self._add(penalty, start, linear)
                self._step(velocity, rate)
                steps += 1
        return *self.state(), steps

    def _shares(self, task: Task) -> torch.Tensor | None:
        """How much every sample counts; None if all count equally."""
        weights = task.sample_weights(self._settings)
        return None if weights is None else torch.from_numpy(weights).to(self._device)

    def _moves(self, task: Task) -> torch.Tensor | None:
        """How every sample is augmented in every epoch; None if none is."""
        settings = self._settings
        if settings.augmentation == "none":
            return None
        size, epochs = (self._shape[1], self._shape[2]), settings.local_epochs
        drawn = moves(settings.augmentation, size, epochs, task.ids, settings.seed, task.client, task.round)
        return torch.from_numpy(drawn).to(self._device)

    def _batches(self, order: torch.Tensor) -> list[torch.Tensor]:
        """The batches of an epoch; with batch normalization, a last batch of one sample is left out."""
        batches = list(torch.split(order, min(self._settings.batch_size, len(order))))
        alone = self._batch_norm is not None and len(batches[-1]) == 1
        return batches[:-1] if alone else batches

    def evaluate(
        self,
        weights: Vector,
        model_buffers: Vector,
        features: npt.NDArray[np.float32],
        labels: npt.NDArray[Any],
    ) -> tuple[int, float, npt.NDArray[np.float32]]:
        """The number of correct samples (0 for regression), the sum of losses, and the outputs."""
        with calling("model", self._settings.model, "while it was tested"):
            return self._evaluate(weights, model_buffers, features, labels)

    def _evaluate(
        self,
        weights: Vector,
        model_buffers: Vector,
        features: npt.NDArray[np.float32],
        labels: npt.NDArray[Any],
    ) -> tuple[int, float, npt.NDArray[np.float32]]:
        self._load(weights, model_buffers)
        self._model.eval()
        correct, loss, all_logits = 0, 0.0, []
        targets = torch.from_numpy(labels).to(self._device)
        with torch.no_grad():
            for batch in torch.split(torch.arange(len(labels)), 250):
                with self._precision():
                    logits = self._logits(self._tensor(features[batch.numpy()]))
                logits = logits.float()
                if not targets.is_floating_point():
                    correct += int((logits.argmax(1) == targets[batch]).sum())
                loss += self._total_loss(logits, targets[batch])
                all_logits.append(logits.cpu().numpy())
        return correct, loss, np.concatenate(all_logits)

    def _total_loss(self, logits: torch.Tensor, labels: torch.Tensor) -> float:
        """The sum of losses over a batch."""
        if self._settings.loss in ("auto", "cross_entropy"):
            return float(functional.cross_entropy(logits, labels, reduction="sum"))
        return float(self._loss(logits, labels)) * len(labels)

    def _logits(self, images: torch.Tensor) -> torch.Tensor:
        wanted = len(images), self._classes
        return check_logits(self._model(images), self._settings.model, wanted, self._shape)

    def _add(self, penalty: LocalPenalty, start: list[torch.Tensor], linear: list[torch.Tensor]) -> None:
        """Add the gradient of strength/2·‖w − w(t)‖² − ⟨linear, w⟩."""
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                continue
            if penalty.strength:
                parameter.grad.add_(parameter.detach() - start[index], alpha=penalty.strength)
            if linear:
                parameter.grad.sub_(linear[index])

    def _step(self, velocity: list[torch.Tensor], rate: float) -> None:
        """A step of SGD as in `torch.optim`, whose import alone takes longer than a short round.

        v ← momentum·v + g,    w ← w − rate·v
        """
        with torch.no_grad():
            for index, parameter in enumerate(self._parameters):
                if parameter.grad is None:
                    continue
                moved = parameter.grad
                if velocity:
                    moved = velocity[index].mul_(self._settings.momentum).add_(moved)
                parameter.sub_(moved, alpha=rate)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)

    def _tensor(self, features: npt.NDArray[np.float32]) -> torch.Tensor:
        tensor = torch.from_numpy(features).to(self._device)
        return tensor.contiguous(memory_format=self._format)

    def _load(self, weights: Vector, model_buffers: Vector) -> None:
        with torch.no_grad():
            for tensor, values in zip(self._parameters, self._split(weights), strict=True):
                tensor.copy_(values)
            pieces = _cut(model_buffers, self._buffers, self._device)
            for buffer, values in zip(self._buffers, pieces, strict=True):
                buffer.copy_(values if buffer.is_floating_point() else values.round())

    def _split(self, vector: Vector | None) -> list[torch.Tensor]:
        return [] if vector is None else _cut(vector, self._parameters, self._device)


def _flat(tensors: list[Any]) -> Vector:
    parts = [tensor.detach().cpu().float().reshape(-1).numpy() for tensor in tensors]
    return np.concatenate([*parts, np.zeros(0, np.float32)])


def _cut(vector: Vector, like: list[Any], device: torch.device) -> list[torch.Tensor]:
    whole = torch.from_numpy(np.array(vector)).to(device)
    pieces = torch.split(whole, [tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def uses_bfloat16(precision: str, device: str) -> bool:
    """Whether to compute in bfloat16; "auto" does so where it is faster: on processors made for it."""
    if precision != "auto":
        return precision == "bf16"
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = get_host_cpu_features()
    return device == "cpu" and any(features.get(name, False) for name in _MADE_FOR_BFLOAT16)


def _torch_seed(seed: int, client: int, round: int) -> int:
    """The seed of layers with randomness, such as dropout."""
    return int(np.random.SeedSequence([seed, client, round + 1, 10]).generate_state(1)[0])


def _losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of every sample: cross-entropy, or squared error if labels are numbers."""
    if labels.is_floating_point():
        return functional.mse_loss(outputs[:, 0], labels, reduction="none")
    return functional.cross_entropy(outputs, labels, reduction="none")


def _loss(settings: Training) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The mean loss of a batch."""
    if settings.loss in ("auto", "cross_entropy"):
        return functional.cross_entropy
    if settings.loss == "squared_error":
        return lambda outputs, labels: functional.mse_loss(outputs[:, 0], labels)
    spec = settings.loss
    own = resolve("loss", spec)
    if isinstance(own, type):
        with calling("loss", spec, "while it was made"):
            own = own()

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs = logits[:, 0] if labels.is_floating_point() else logits
        with calling("loss", spec):
            value = own(outputs, labels)
        if not isinstance(value, torch.Tensor) or value.ndim:
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError.of(f"the output of loss {describe(spec)!r}", "a tensor of one number", got)
        return value

    return loss
