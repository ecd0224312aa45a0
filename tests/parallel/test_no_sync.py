"""Accumulated gradients are those of one device, whatever happens between micro-batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyrig
from anyrig.parallel.plans import Replicas

pytestmark = pytest.mark.gpus(3)


class Branches(nn.Module):
    """Uses its second layer only if asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor, second: bool = True) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden) if second else hidden


def models(**options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    one = Branches().double().to("cuda:0")
    rig = anyrig.Rig.parse("cuda:0,1,2")
    return one, anyrig.spread(copy.deepcopy(one), rig, **options)


def batch(rows: int) -> Tensor:
    return torch.randn(rows, 4, dtype=torch.float64, device="cuda:0")


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def assert_same_gradients(model: Any, one: nn.Module) -> None:
    torch.testing.assert_close(gradients(model), gradients(one), rtol=1e-9, atol=1e-12)


# The last batch is smaller than the rig, reaches the lead only, or does not use a layer.
@pytest.mark.parametrize("last", [(6, True), (2, True), (1, True), (6, False), (1, False)], ids=str)
def test_the_sum_is_that_of_all_micro_batches(last: tuple[int, bool]) -> None:
    one, model = models()
    batches = [(batch(6), True), (batch(5), True), (batch(last[0]), last[1])]
    for x, second in batches:
        one(x, second).square().sum().backward()
    with model.no_sync():
        for x, second in batches[:-1]:
            model(x, second).square().sum().backward()
    x, second = batches[-1]
    model(x, second).square().sum().backward()
    assert_same_gradients(model, one)


def zero(module: nn.Module) -> None:
    torch.optim.SGD(module.parameters(), 0.1).zero_grad(set_to_none=False)


def set_to_none(module: nn.Module) -> None:
    torch.optim.SGD(module.parameters(), 0.1).zero_grad()


def clip(module: nn.Module) -> None:
    nn.utils.clip_grad_norm_(module.parameters(), 1e-2)


def unscale(module: nn.Module) -> None:
    """Divide gradients by their scale, as GradScaler does before it looks for an overflow."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(1 / 1024)


def step(module: nn.Module) -> None:
    torch.optim.SGD(module.parameters(), 0.1, fused=True).step()


def replace_a_layer(module: Any) -> None:
    torch.manual_seed(1)
    module.second = nn.Linear(3, 5).double().to("cuda:0")


@pytest.mark.parametrize("inside", [True, False], ids=["within it", "after it"])
@pytest.mark.parametrize("shares", [[1, 1, 1], [0, 1, 1]], ids=str)
@pytest.mark.parametrize(
    "between",
    [zero, set_to_none, clip, unscale, step, replace_a_layer],
    ids=lambda function: function.__name__,
)
def test_what_happens_between_micro_batches_happens_to_all_of_the_gradient(
    between: Callable[[Any], None], shares: list[int], inside: bool
) -> None:
    one, model = models(plan=Replicas(shares=shares))
    large, x = 1000 * batch(6), batch(6)
    one(large).square().sum().backward()
    between(one)
    one(x).square().sum().backward()
    with model.no_sync():
        model(large).square().sum().backward()
        if inside:
            between(model)
    if not inside:
        between(model)
    with model.no_sync() if inside else nullcontext():
        model(x).square().sum().backward()
    assert_same_gradients(model, one)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_steps_that_a_scaler_skips(set_to_none: bool) -> None:
    one, model = models()
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (one, model)]
    scalers = [torch.amp.GradScaler("cuda", init_scale=8.0) for _ in optimizers]
    for factor in (1.0, float("inf"), 1.0, float("nan"), 1.0):
        first, second = batch(6), factor * batch(5)
        for net, optimizer, scaler in zip((one, model), optimizers, scalers, strict=True):
            optimizer.zero_grad(set_to_none=set_to_none)
            with model.no_sync():
                scaler.scale(net(second).square().sum()).backward()
            scaler.scale(net(first).square().sum()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0
    torch.testing.assert_close(model.state_dict(), one.state_dict(), rtol=1e-9, atol=1e-12)


def test_hooks_see_each_gradient_whole() -> None:
    one, model = models()
    x = batch(6)
    seen: list[Tensor] = []
    model.first.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    one(x).square().sum().backward()
    with model.no_sync():
        model(x).square().sum().backward()
    torch.testing.assert_close(seen, [one.first.weight.grad], rtol=1e-9, atol=1e-12)
