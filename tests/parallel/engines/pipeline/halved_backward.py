"""Backward passes in two halves, compared with whole ones."""

from __future__ import annotations

from typing import Any

import torch
from split_modules import CASES
from torch import Tensor, nn

from anyrig.parallel.engines.pipeline.weight_gradients import DeferredWeights

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def weighted(output: Any) -> Tensor:
    """Return a number whose gradient is different for every element of the outputs."""
    outputs = output if isinstance(output, list | tuple) else [output]
    return torch.stack(
        [
            (one * torch.linspace(1, 2, one.numel(), dtype=one.dtype).view_as(one)).sum()
            for one in outputs
        ]
    ).sum()


def gradients_of(module: nn.Module, value: Tensor) -> dict[str, Tensor | None]:
    return {"input": value.grad, **{name: one.grad for name, one in module.named_parameters()}}


def made(name: str, has_gradient: bool) -> tuple[nn.Module, Tensor]:
    case = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, value = case.make().double(), case.make_input()
    if value.is_floating_point():
        value = value.double().requires_grad_(has_gradient)
    return module, value


def finish(deferred: DeferredWeights) -> list[Tensor]:
    """Compute what was deferred; return the weight of each use."""
    weights = [use.weight for use, *_ in deferred._kept]
    deferred.compute()
    assert not deferred._kept
    return weights


def split(module: nn.Module, value: Tensor) -> int:
    """Compute gradients in two halves, and return the number of deferred uses of weights."""
    deferred = DeferredWeights(module.parameters())
    with deferred.deferring():
        loss = weighted(module(value))
    with deferred.collecting():
        loss.backward()
    return len(finish(deferred))
