"""The replicas of one process are tracked, although they run in threads of their own."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import anyrig
from anyrig.memory import DeviceFootprint, Footprint, Holding, Kind, explain_oom, track

pytestmark = pytest.mark.gpus(2)


@pytest.fixture(autouse=True)
def _no_graphs_left() -> Iterator[None]:
    gc.collect()  # models and tensors that the frames of an exception hold
    yield
    gc.collect()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()  # IN THE MODEL


def spread_model() -> nn.Module:
    net = nn.Sequential(Block(), nn.Linear(1024, 64), nn.Tanh()).to("cuda:0")
    return anyrig.spread(net, anyrig.Rig.parse("cuda:0,1"), plan=anyrig.Replicas(shares=[1, 1]))


def on(device: int, footprint: Footprint) -> DeviceFootprint:
    (found,) = [each for each in footprint.devices if each.device == torch.device("cuda", device)]
    return found


def activations(device: int, footprint: Footprint) -> list[Holding]:
    """Return the activations of a device, without those of a few bytes."""
    end = on(device, footprint).end
    return [h for h in end.holdings if h.kind is Kind.ACTIVATIONS and h.bytes > 10_000]


@pytest.mark.parametrize("warm", [False, True])
def test_activations_of_a_replica_have_its_modules_and_lines(warm: bool) -> None:
    model = spread_model()
    x = torch.randn(512, 64, device="cuda:0")
    if warm:
        model(x).sum().backward()
    with track() as footprint:
        y = model(x)  # THE CALL
    y.sum().backward()
    places = []
    for device in (0, 1):
        found = {
            (holding.module, None if holding.line is None else holding.line.text)
            for holding in activations(device, footprint)
        }
        places.append({place for place in found if place[0] in ("0", "0.linear", "1", "2")})
    assert ("0", "return self.linear(x).relu()  # IN THE MODEL") in places[1]
    assert ("2", "y = model(x)  # THE CALL") in places[1]
    assert places[0] == places[1]


def test_backward_passes_of_replicas_have_the_lines_of_their_forward_passes() -> None:
    model = spread_model()
    x = torch.randn(512, 64, device="cuda:0")
    model(x).sum().backward()
    with track() as footprint:
        model(x).sum().backward()
    for device in (0, 1):
        holdings = on(device, footprint).peak.holdings
        modules = {h.module for h in holdings if h.phase == "backward" and h.bytes > 10_000}
        assert modules & {"0", "0.linear", "1", "2"}, (device, modules)


class Growing(nn.Module):
    """Runs out of memory on the second device only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.index == 1:
            kept = []
            while True:
                kept.append(torch.empty(2**36, device=x.device))  # HERE
        return x * self.weight


@pytest.mark.parametrize("warm", [False, True])
def test_a_replica_that_runs_out_of_memory_has_a_report(warm: bool) -> None:
    net = Growing().to("cuda:0")
    model = anyrig.spread(net, anyrig.Rig.parse("cuda:0,1"), plan=anyrig.Replicas(shares=[1, 1]))
    x = torch.randn(8, 16, device="cuda:0")
    if warm:
        with torch.no_grad():
            model(x[:1]).sum()
    with pytest.raises(torch.OutOfMemoryError) as caught, explain_oom():
        model(x).sum().backward()
    report = caught.value.report
    assert report.device == torch.device("cuda:1")
    assert report.moment.module == ""
    assert report.moment.line.text.endswith("# HERE")
    assert "x" in report.moment.by_name()


def test_names_of_pytorchs_own_replicas() -> None:
    net = nn.Sequential(nn.Linear(64, 256), nn.Tanh()).to("cuda:0")
    x = torch.randn(8, 64, device="cuda:1")
    with track() as footprint:
        _, replica = nn.parallel.replicate(net, [0, 1])
        y = replica(x)
    del net, replica
    (holding,) = [h for h in on(1, footprint).end.holdings if h.name == "y"]
    assert holding.bytes == y.nbytes
    assert holding.module == "1"
