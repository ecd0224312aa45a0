"""A module that returns what a function makes of errors and a mask: means, sums and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 8


class Net(nn.Module):
    """Returns what a function makes of the errors of positions and a mask; has dropout."""

    def __init__(self, reduce: Callable[[Tensor, Tensor, nn.Module], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4).double()
        self.dropout = nn.Dropout(0.5)
        self.reduce = reduce
        self.calls: list[int] = []

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        self.calls.append(len(x))
        h = self.dropout(self.linear(x))
        return self.reduce(h.square(), mask, self)


def batch() -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 3, dtype=torch.float64, generator=numbers)
    return x, (torch.rand(ROWS, 4, generator=numbers) > 0.4).double()


def masked_mean(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors * mask).sum() / mask.sum()


def masked_mean_by_a_number(errors: Tensor, mask: Tensor, module: nn.Module) -> Any:
    return {"loss": (errors * mask).sum() / mask.sum().item(), "count": mask.sum()}


def second_of_two(errors: Tensor, mask: Tensor, module: nn.Module) -> Any:
    return errors.mean(), [(errors * mask).sum() / mask.sum().clamp(min=1)]


def root(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return errors.mean().sqrt()


def deviation(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return errors.std()


def compared_samples(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors @ errors.T).logsumexp(1).mean()


def total(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors * mask).sum()


def mean(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors * mask).mean()


def mean_by_a_number(errors: Tensor, mask: Tensor, module: nn.Module) -> Any:
    return errors.sum(), errors.sum() / errors.numel()


def mean_over_targets(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    targets = torch.where(mask[:, 0] > 0, 1, -100)
    return 2 * functional.cross_entropy(errors, targets) + errors.mean()


def penalty(errors: Tensor, mask: Tensor, module: nn.Module) -> Any:
    return errors, sum(each.square().sum() for each in module.parameters())


def outputs(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return errors * mask


def noise(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors * torch.rand_like(errors)).mean()
