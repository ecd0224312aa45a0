"""Writes to ``parameter.data``, which nothing notes: found without waiting where that is cheap."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices, on_lead

import anyrig
from anyrig.parallel.replicas import unnoticed

pytestmark = pytest.mark.gpus(3)


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a module that is sent again, or of one that is asked about."""
    if request.param == "large":
        monkeypatch.setattr(unnoticed, "SEND_AGAIN_BYTES", 0)
    return str(request.param)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, device="cuda:0")


@pytest.mark.usefixtures("size")
def test_weights_swapped_in_and_out_and_in_again(x: Tensor) -> None:
    net = on_lead(nn.Sequential(nn.Linear(4, 600), nn.Linear(600, 600), nn.Linear(600, 3)))
    model = anyrig.spread(net, first_devices(3))
    averages = [torch.randn_like(parameter) for parameter in net.parameters()]
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(model(x), net(x))
            for parameter, average in zip(net.parameters(), averages, strict=True):
                swapped = parameter.clone()
                parameter.data.copy_(average)
                average.copy_(swapped)


@pytest.mark.usefixtures("size")
def test_one_number_among_many(x: Tensor) -> None:
    net = on_lead(nn.Sequential(nn.Linear(4, 600), nn.Linear(600, 600), nn.Linear(600, 3)))
    model = anyrig.spread(net, first_devices(3))
    with torch.no_grad():
        model(x)
        for place in ((0, 0), (599, 599), (300, 2)):
            model(x)
            net[1].weight.data[place] += 1
            torch.testing.assert_close(model(x), net(x))


@pytest.mark.usefixtures("size")
def test_a_device_that_sat_out_a_step(x: Tensor) -> None:
    net = on_lead(nn.Linear(4, 3))
    model = anyrig.spread(net, first_devices(3))
    with torch.no_grad():
        model(x)
        net.weight.data.mul_(2)
        model(x[:2])  # no rows for the last device
        torch.testing.assert_close(model(x), net(x))


def test_the_host_goes_ahead_of_the_devices(size: str) -> None:
    """By the virtual clock: an evaluation loop over a small module waits for nothing."""
    net = nn.Linear(1024, 1024, bias=False).to("cuda:0")
    model = anyrig.spread(net, first_devices(2))
    x = torch.randn(2, 1024, device="cuda:0")
    with torch.no_grad():
        for _ in range(2):
            model(x)
        torch.cuda._sleep(14_100_000)  # ten milliseconds at 1.41 GHz
        slept = torch.cuda.current_stream().record_event()
        for _ in range(2):
            model(x)
    assert slept.query() == (size == "large")
