"""Steps leave nothing behind, and neither do models that are dropped."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from trained_models import first_devices

import anyrig
from anyrig.parallel.plans import Replicas

pytestmark = [
    pytest.mark.gpus(3),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]


def take_stock() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {
        "bytes": sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())),
        "objects": len(gc.get_objects()),
        "threads": process.num_threads(),
        "python threads": threading.active_count(),
        "files": process.num_fds(),
    }


def training(**options: Any) -> Callable[[int], Any]:
    module = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 4))
    model = anyrig.spread(module.cuda(), first_devices(3), **options)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(16, 8, device="cuda:0"), torch.randint(4, (16,), device="cuda:0")

    def step(number: int) -> Any:
        rows = 16 - number % 4
        optimizer.zero_grad()
        if "loss" in options:
            loss = model(x[:rows], target=y[:rows])
        else:
            loss = nn.functional.cross_entropy(model(x[:rows]), y[:rows])
        loss.backward()
        optimizer.step()
        return model

    return step


class OfManyAttributes(nn.Module):
    """Uses its weights through attributes, which replicas get again in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.weights = [self.linear.weight]
        self.add_bias = functools.partial(torch.add, other=self.linear.bias)
        self.compute = self.linear.forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.add_bias(self.compute(x)) * self.weights[0].sum()


@pytest.mark.parametrize("options", [{}, {"loss": nn.CrossEntropyLoss()}])
def test_a_step_needs_no_garbage_collection(options: dict[str, Any]) -> None:
    model = anyrig.spread(OfManyAttributes().cuda(), first_devices(3), **options)
    x, y = torch.randn(16, 8, device="cuda:0"), torch.randint(4, (16,), device="cuda:0")

    def step() -> None:
        target = {"target": y} if options else {}
        model(x, **target).sum().backward()
        model.zero_grad()

    step()
    gc.collect()
    gc.disable()
    try:
        step()
        assert gc.collect() == 0  # cycles would keep tensors until a collection
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "options", [{}, {"loss": nn.CrossEntropyLoss()}, {"plan": Replicas(shares=[1, 2, 3])}]
)
@pytest.mark.parametrize("steps", [200, pytest.param(1000, marks=pytest.mark.sweep)])
def test_steps_leave_nothing(steps: int, options: dict[str, Any]) -> None:
    step = training(**options)
    for number in range(24):
        step(number)
    before = take_stock()
    for number in range(steps):
        step(number)
    after = take_stock()
    # Far less than one object per step: pytest, psutil and caches keep some, too.
    assert after.pop("objects") - before.pop("objects") < 40
    assert after == before


def test_dropped_models_leave_nothing() -> None:
    def cycle() -> None:
        step = training(loss=nn.CrossEntropyLoss())
        for number in range(2):
            step(number)

    for _ in range(5):
        cycle()
    before = take_stock()
    for _ in range(15):
        cycle()
    after = take_stock()
    assert after.pop("objects") - before.pop("objects") < 15
    assert after == before


def test_a_dropped_model_goes_at_once() -> None:
    """It is freed without the cycle collector, which may run when the GPU is long full."""
    training()(0)  # allocates the devices' workspaces, which stay
    gc.collect()
    gc.disable()
    try:
        allocated = [torch.cuda.memory_allocated(i) for i in range(3)]
        step = training()
        model = weakref.ref(step(0))
        assert torch.cuda.memory_allocated(1) > allocated[1]
        del step
        assert model() is None
        assert [torch.cuda.memory_allocated(i) for i in range(3)] == allocated
    finally:
        gc.enable()


def test_outputs_that_are_kept_hold_no_more_than_themselves() -> None:
    model = anyrig.spread(nn.Linear(8, 4).cuda(), first_devices(3))
    x = torch.randn(12, 8, device="cuda:0")
    kept = [model(x).detach() for _ in range(4)]
    before = sum(torch.cuda.memory_allocated(i) for i in range(3))
    kept += [model(x).detach() for _ in range(10)]
    each = 512  # the allocator's smallest block
    assert sum(torch.cuda.memory_allocated(i) for i in range(3)) - before == 10 * each
