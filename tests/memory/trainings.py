"""Small training runs whose bytes can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

BATCH = 8


class LastOutput(nn.Module):
    """An LSTM's output at the last position."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(x)[0]
        return outputs[:, -1]


class Checkpointed(nn.Module):
    """A model whose intermediate results are computed again in the backward pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return result


def mlp() -> tuple[nn.Module, Tensor]:
    layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(*layers), torch.randn(BATCH, 64)


def convolutional() -> tuple[nn.Module, Tensor]:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 10))
    return nn.Sequential(*layers), torch.randn(BATCH, 3, 16, 16)


def transformer() -> tuple[nn.Module, Tensor]:
    block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.Sequential(block, nn.Flatten(), nn.Linear(12 * 32, 10)), torch.randn(BATCH, 12, 32)


def lstm() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(LastOutput(), nn.Linear(32, 10)), torch.randn(BATCH, 12, 16)


MODELS = {
    "mlp": mlp,
    "convolutional": convolutional,
    "transformer": transformer,
    "lstm": lstm,
}
OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.1),
}
WAYS = ("plain", "bfloat16", "checkpointed")


@dataclass
class Training:
    """A model, its optimizer and its batch, on one device."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    samples: Tensor
    targets: Tensor
    precision: Callable[[], AbstractContextManager[object]] = nullcontext

    def step(self) -> None:
        x, y = self.samples.to(self.device), self.targets.to(self.device)
        with self.precision():
            loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def prepare(model: str, optimizer: str, way: str, device: str) -> Training:
    net, samples = MODELS[model]()
    if way == "checkpointed":
        net = Checkpointed(net)
    net.to(device)
    training = Training(
        net, OPTIMIZERS[optimizer](net.parameters()), samples, torch.randint(10, (BATCH,))
    )
    if way == "bfloat16":
        training.precision = partial(torch.autocast, device, dtype=torch.bfloat16)
    return training
