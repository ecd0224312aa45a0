"""The model that the ranks train, and its reference: training on whole batches in one process."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from anyrig.virtual import installation

WIDTH, HEADS, BATCH, LENGTH = 16, 4, 8, 6
# Buckets, buffers and momentum exist from the second step on; the third repeats the second.
STEPS, STEPS_WITHOUT_DATA = 3, 2
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}


class Layer(nn.Module):
    """A transformer layer: attention and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        heads = (
            project(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(x)))


def new_model(layers: int = 2, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(layers))).to("cuda", dtype)


def batches(dtype: torch.dtype, steps: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps or (STEPS if has_values() else STEPS_WITHOUT_DATA)):
        x, y = torch.randn(2, BATCH, LENGTH, WIDTH, generator=generator).to(dtype)
        yield x.cuda(), y.cuda()


def optimizer_of(parameters: Iterable[Tensor], **options: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9, **options)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dtype: torch.dtype = torch.float64,
    *,
    rank: int = 0,
    ranks: int = 1,
    steps: int | None = None,
) -> None:
    """Train on the part of each batch that belongs to `rank`."""
    for x, y in batches(dtype, steps):
        optimizer.zero_grad()
        functional.mse_loss(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank]).backward()
        optimizer.step()


def train_reference(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    model = copy.deepcopy(model)
    train(model, optimizer_of(model.parameters()), dtype)
    return model


@cache
def new_model_trained(layers: int = 2, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return `new_model` after training on whole batches. Callers share the model."""
    return train_reference(new_model(layers, dtype), dtype)


def check_equal(model: nn.Module, expected: nn.Module) -> None:
    """Compare all parameters. In shape-only mode, run the same operations without a result."""
    dtype = next(expected.parameters()).dtype
    max_error = torch.zeros((), device="cuda", dtype=torch.float64)
    for actual, reference in zip(model.parameters(), expected.parameters(), strict=True):
        whole = actual.full_tensor() if isinstance(actual, DTensor) else actual
        max_error = max_error.maximum((whole.detach() - reference.detach()).abs().max())
    dist.all_reduce(max_error, dist.ReduceOp.MAX)
    if has_values():
        assert max_error.item() <= TOLERANCES[dtype]


def has_values() -> bool:
    installed = installation()
    return installed is not None and not installed.shape_only
