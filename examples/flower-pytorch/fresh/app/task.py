"""A small network on handwritten digits."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

Pair = tuple[Tensor, Tensor]


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        """One logit per digit."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


def digits(train: bool) -> Dataset[Pair]:
    """The training digits, or the test digits."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    part = slice(0, 1437) if train else slice(1437, None)
    return TensorDataset(images[part], torch.tensor(data.target)[part])


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> DataLoader[Pair]:
    """The digits of a client."""
    mine = torch.utils.data.Subset(digits(train=True), range(partition_id, 1437, num_partitions))
    return DataLoader(mine, batch_size=batch_size, shuffle=True)


def train(net: nn.Module, loader: DataLoader[Pair], local_epochs: int, lr: float) -> float:
    """Train, and return the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for _ in range(local_epochs):
        total, batches = 0.0, 0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total, batches = total + loss.item(), batches + 1
    return total / max(batches, 1)


def test(net: nn.Module) -> tuple[float, float]:
    """Loss and accuracy on the test digits."""
    with torch.no_grad():
        images, labels = next(iter(DataLoader(digits(train=False), batch_size=360)))
        logits = net(images)
        accuracy = (logits.argmax(1) == labels).float().mean().item()
        return functional.cross_entropy(logits, labels).item(), accuracy
