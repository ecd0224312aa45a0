"""A small model, its training, and a comparison of states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def make_model(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    device = next(model.parameters()).device
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4, device=device)).square().mean().backward()
        optimizer.step()


def flat(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        return {k: v for key, each in state.items() for k, v in flat(each, f"{name}.{key}").items()}
    if isinstance(state, (list, tuple)):
        return flat(dict(enumerate(state)), name)
    return {name: state}


def assert_same(one: Any, other: Any) -> None:
    one, other = flat(one), flat(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, Tensor):
            assert torch.equal(value.cpu(), other[name].cpu()), name
        else:
            assert value == other[name], name
