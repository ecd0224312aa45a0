"""Models of blocks that keep a few MiB each, and their peak under a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from recomputed_models import measured
from torch import Tensor, nn

from anyrig.memory import recompute_blocks


class Wave(nn.Module):
    """Keeps three tensors of the size of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).sin().cos()


class Waves(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.waves = nn.ModuleList(Wave() for _ in range(count))
        self.repeats = 1

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.repeats):
            for wave in self.waves:
                x = wave(x)
        return x.sum()


def waves(count: int = 4, size: int = 2**18) -> tuple[Waves, Tensor, Callable[[], None]]:
    """Return a model whose blocks each keep 2 or 3 MiB, its input, and its step."""
    model, x = Waves(count).cuda(), torch.randn(size, device="cuda")

    def step() -> None:
        model(x).backward()
        model.zero_grad()

    return model, x, step


def peak_with(model: nn.Module, names: Iterable[str], step: Callable[[], object]) -> int:
    recompute_blocks(model, names)
    step()
    return measured(step)[0]
