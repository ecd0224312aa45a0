"""Accumulating gradients without reducing them until the last micro-batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyrig

pytestmark = pytest.mark.gpus(3)


class Branches(nn.Module):
    """Uses its second layer for rows that ask for it."""

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
    torch.testing.assert_close(gradients(model), gradients(one), rtol=1e-9, atol=1e-12)
    # Nothing is left for the next step.
    for net in (one, model):
        net.zero_grad()
        net(x).square().sum().backward()
    torch.testing.assert_close(gradients(model), gradients(one), rtol=1e-9, atol=1e-12)


def test_within_it_nothing_leaves_the_devices() -> None:
    _, model = models(shares=[0, 1, 1])
    with model.no_sync():
        model(batch(6)).sum().backward()
    assert gradients(model) == [None] * 4


def test_hooks_see_the_gradient_once() -> None:
    _, model = models()
    seen: list[Tensor] = []
    model.first.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    with model.no_sync():
        model(batch(2)).sum().backward()
    seen.clear()  # the lead's part
    model(batch(6)).sum().backward()
    torch.testing.assert_close(seen, [model.first.weight.grad])


def test_what_was_kept_can_be_dropped() -> None:
    one, model = models()
    with model.no_sync():
        model(batch(6)).sum().backward()
    model.zero_grad()
    x = batch(6)
    for net in (one, model):
        net(x).sum().backward()
    torch.testing.assert_close(gradients(model), gradients(one), rtol=1e-9, atol=1e-12)


def test_a_change_of_the_layers_in_between_is_told() -> None:
    _, model = models()
    with model.no_sync():
        model(batch(6)).sum().backward()
    model.second = nn.Linear(3, 2).double().to("cuda:0")
    with pytest.raises(anyrig.AnyrigError, match=r"gradients of no_sync\(\) were waiting"):
        model(batch(6))
