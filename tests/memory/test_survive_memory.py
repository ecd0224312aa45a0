"""`survive` keeps nothing of an earlier part alive, and waits for a device that still computes."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

import pytest
import torch
from surviving_steps import assert_close, expected_gradients, gradients
from torch import Tensor, nn

from anyrig.memory import survive

pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore:a step of"),
    pytest.mark.usefixtures("few_objects"),
]


class KeepInGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor) -> Tensor:
        ctx.kept = kept
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


def test_nothing_of_an_earlier_part_is_held() -> None:
    weight = torch.ones(2, device="cuda", requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    held: list[weakref.ref[Tensor]] = []
    reserved = []

    def hold_and_fail() -> None:
        also_large = torch.empty(2**23, device="cuda")
        raise KeyError(len(also_large))

    def loss_of(x: Tensor) -> Tensor:
        assert [each() for each in held] == [None] * len(held)
        reserved.append(torch.cuda.memory_reserved())
        large = torch.empty(2**20, device="cuda")
        held.append(weakref.ref(large))
        if len(held) == 1:
            try:
                hold_and_fail()
            except KeyError:
                raise torch.OutOfMemoryError from None
        loss: Tensor = KeepInGraph.apply(x * weight, large)  # type: ignore[no-untyped-call]
        return loss.mean()

    x = torch.ones(6, 2, device="cuda")
    torch.cuda.empty_cache()
    survive(loss_of)(x)
    assert len(held) == 3
    assert reserved[0] == reserved[1]  # the caches were emptied when nothing was held


def test_copies_of_autocast_are_not_held() -> None:
    weight = nn.Parameter(torch.ones(64, 64, device="cuda", dtype=torch.float32))
    allocated = []

    def loss_of(x: Tensor) -> Tensor:
        allocated.append(torch.cuda.memory_allocated())
        loss: Tensor = (x @ weight).float().mean()
        if len(x) > 2:
            raise torch.OutOfMemoryError
        return loss

    x = torch.ones(4, 64, device="cuda", dtype=torch.float32)
    (x @ weight).sum()  # cuBLAS gets its workspace
    with torch.autocast("cuda", torch.bfloat16):
        survive(loss_of)(x)
    assert allocated[1] == allocated[0]


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, begun: threading.Event) -> Tensor:
        ctx.weight, ctx.begun = weight, begun
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.begun.set()
        time.sleep(0.3)
        ctx.weight.grad = torch.full_like(ctx.weight, 1e9)
        return gradient, None, None


class OutOfMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, begun: threading.Event) -> Tensor:
        ctx.begun = begun
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.begun.wait(10)
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_device_that_still_computes_is_waited_for() -> None:
    net = nn.Linear(2, 2, device="cuda:1")
    begun = threading.Event()

    def loss_of(x: Tensor) -> Tensor:
        if len(x) < 4:
            return net(x).mean()
        slow = Slow.apply(net(x), net.weight, begun)  # type: ignore[no-untyped-call]
        fails = OutOfMemory.apply(  # type: ignore[no-untyped-call]
            torch.ones(2, device="cuda:0", requires_grad=True), begun
        )
        loss: Tensor = slow.mean() + fails.mean().to("cuda:1")
        return loss

    x = torch.ones(4, 2, device="cuda:1")
    survive(loss_of)(x)
    time.sleep(0.4)
    assert begun.is_set()
    found = gradients(net)
    net.zero_grad()
    assert_close(found, expected_gradients(net, net(x).mean()))
