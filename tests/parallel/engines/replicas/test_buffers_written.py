"""Buffers that a forward writes: the lead's stay, and a graph that saved another value raises."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices, on_lead

import anyrig

pytestmark = [
    pytest.mark.gpus(3),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]

STALE = "modified by an inplace operation"


class Scaled(nn.Module):
    """Multiplies by a buffer, and on some devices writes the buffer first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(()))
        self.writers: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        if x.get_device() in self.writers:
            with torch.no_grad():
                self.scale.copy_(x.abs().max())
        return self.linear(x) * self.scale


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, device="cuda:0")


def models() -> tuple[Any, Any]:
    net = on_lead(Scaled())
    return net, anyrig.spread(net, first_devices(3))


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
def test_what_a_replica_wrote_is_the_leads_again_at_the_next_call(mode: str, x: Tensor) -> None:
    net, model = models()
    net.train(mode == "train")
    net.writers = (1,)
    with torch.set_grad_enabled(mode != "no_grad"):
        model(x)
        assert net.scale == 1
        net.writers = ()
        torch.testing.assert_close(model(x), net(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("writers", [(0,), (1,), (0, 1, 2)], ids=str)
def test_a_buffer_that_changes_between_two_calls_and_a_backward_pass(
    writers: tuple[int, ...], x: Tensor
) -> None:
    net, model = models()
    model(x)
    net.writers = writers
    first = model(x)
    net.writers = ()
    second = model(x)
    with pytest.raises(RuntimeError, match=STALE):
        first.sum().backward()
    net.zero_grad()
    second.sum().backward()
    found = net.linear.weight.grad.clone()
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(found, net.linear.weight.grad, rtol=1e-9, atol=1e-12)


class Counting(Scaled):
    """Multiplies by one buffer and writes another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if x.get_device() in self.writers:
            with torch.no_grad():
                self.largest.copy_(x.abs().max())
        return self.linear(x) * self.scale


def test_another_buffer_may_change_between_two_calls_and_a_backward_pass(x: Tensor) -> None:
    net = on_lead(Counting())
    model = anyrig.spread(net, first_devices(3))
    for net.writers in ((0,), (1,), (0, 1, 2)):
        first = model(x)
        model(x)
        first.sum().backward()


def test_a_buffer_that_the_caller_changes(x: Tensor) -> None:
    net, model = models()
    for change, raises in ((lambda: net.scale.mul_(2), True), (lambda: None, False)):
        first = model(x)
        change()
        model(x)
        if raises:
            with pytest.raises(RuntimeError, match=STALE):
                first.sum().backward()
        else:
            first.sum().backward()


@pytest.mark.parametrize("sync_batch_norm", [False, True])
def test_two_calls_of_a_module_with_running_statistics(sync_batch_norm: bool, x: Tensor) -> None:
    """PyTorch's layers write statistics so that both calls can run backward; so must anyrig."""
    one = on_lead(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    nn.utils.parametrizations.spectral_norm(one[0])
    model = anyrig.spread(
        copy.deepcopy(one), first_devices(2), plan=anyrig.Replicas(sync_batch_norm=sync_batch_norm)
    )
    for _ in range(2):
        (model(x) + model(2 * x)).sum().backward()
    if sync_batch_norm:
        for _ in range(2):
            (one(x) + one(2 * x)).sum().backward()
        for found, expected in zip(model.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shares", [[1, 1, 1], [0, 1, 1]], ids=str)
def test_running_statistics_may_change_between_two_calls_and_a_backward_pass(
    shares: list[int], x: Tensor
) -> None:
    net = on_lead(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    model = anyrig.spread(net, first_devices(3), plan=anyrig.Replicas(shares=shares))
    (model(x) + model(x)).sum().backward()
    assert net[1].num_batches_tracked == 2


class Growing(nn.Module):
    """Keeps its inputs in a buffer, and replaces that buffer in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, self.seen.new_ones(1)])
        return self.linear(x)


def test_a_buffer_that_an_idle_lead_adopts_in_another_shape() -> None:
    module = Growing().to("cuda:0")
    model = anyrig.spread(module, anyrig.Rig.parse("cuda:0,1"), plan=anyrig.Replicas(shares=[0, 1]))
    for calls in (1, 2):
        model(torch.randn(3, 4)).sum().backward()
        assert module.seen.tolist() == [0.0] + [1.0] * calls
        assert module.seen.device == torch.device("cuda:0")
