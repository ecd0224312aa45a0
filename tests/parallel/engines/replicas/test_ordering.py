"""What waits for what: by the virtual clock, a sleeping stream delays whatever needs its work.

Virtual GPUs compute in the order of launches, so a missing wait changes times but no numbers; on
real GPUs it would change numbers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices

import anyrig
from anyrig.parallel.engines.replicas import buckets
from anyrig.parallel.engines.replicas.broadcast import side_streams
from anyrig.transfer.streams import using

pytestmark = [
    pytest.mark.gpus(3),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]

LEAD, OTHER, LAST = (torch.device("cuda", index) for index in range(3))
SOON, LATE = 2e-3, 8e-3  # seconds; a sleep takes ten milliseconds


class Stopwatch:
    """Measures the time since it was made, by events."""

    def __init__(self) -> None:
        for device in (LEAD, OTHER, LAST):
            torch.cuda.synchronize(device)
        self._starts = {device: _event(device) for device in (LEAD, OTHER, LAST)}

    def seconds(self, event: torch.cuda.Event) -> float:
        event.synchronize()
        return self._starts[event.device].elapsed_time(event) / 1e3

    def now_on(self, device: torch.device) -> float:
        return self.seconds(_event(device))


def _event(device: torch.device, stream: torch.Stream | None = None) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream or torch.cuda.current_stream(device))
    return event


def sleep(stream: torch.Stream) -> None:
    with using(stream):
        torch.cuda._sleep(14_100_000)  # at 1.41 GHz


def spread(module: nn.Module, count: int = 2) -> tuple[Any, Tensor]:
    """Return a model that has been called, so that it has replicas, and a batch."""
    model = anyrig.spread(module.to(LEAD), first_devices(count))
    x = torch.randn(6, 4, device=LEAD)
    model(x).sum().backward()
    return model, x


def change(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)


def begins(module: nn.Module) -> dict[torch.device, torch.cuda.Event]:
    """Return a dict that will hold an event of the start of each device's forward."""
    noted: dict[torch.device, torch.cuda.Event] = {}

    def note(layer: Any, given: Any) -> None:
        layer.weight  # noqa: B018 - that is what a replica waits for
        noted[given[0].device] = _event(given[0].device)

    module.register_forward_pre_hook(note)
    return noted


def test_a_buffer_is_not_written_before_it_was_read() -> None:
    """The lead begins its forward when buffers are packed, because replicas read them, too."""
    model, x = spread(nn.BatchNorm1d(4))
    noted = begins(model.module)
    watch = Stopwatch()
    sleep(side_streams(LEAD).leaving)
    model(x)
    assert watch.seconds(noted[LEAD]) > LATE


def test_a_parameter_is_not_written_before_it_was_read() -> None:
    """The lead begins its forward at once, but an optimizer's step waits for the copies."""
    model, x = spread(nn.Linear(4, 4))
    noted = begins(model.module)
    change(model.module)
    watch = Stopwatch()
    sleep(side_streams(LEAD).leaving)
    model.scattered(x)  # without a wait for outputs
    assert watch.seconds(noted[LEAD]) < SOON
    assert watch.now_on(LEAD) > LATE


def test_a_replica_waits_for_its_parameters() -> None:
    model, x = spread(nn.Linear(4, 4))
    noted = begins(model.module)
    change(model.module)
    watch = Stopwatch()
    sleep(side_streams(OTHER).arriving)
    model(x)
    assert watch.seconds(noted[OTHER]) > LATE


def test_a_large_tensor_passes_in_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last device gets the tensor soon after the device before it, in both directions."""
    model, _ = spread(nn.Sequential(nn.Linear(4, 2048), nn.Linear(2048, 8192, bias=False)), 3)
    x = torch.randn(3, 4, device=LEAD)
    seconds = {}
    for cut_bytes in (2**26, 2**24):
        monkeypatch.setattr(buckets, "BUCKET_BYTES", cut_bytes)
        change(model.module)
        watch = Stopwatch()
        output = model(x)
        there = watch.seconds(_event(LAST, side_streams(LAST).arriving))
        loss = output.sum()
        watch = Stopwatch()
        loss.backward()
        seconds[cut_bytes] = there, watch.now_on(LEAD)
    for whole, cut in zip(*seconds.values(), strict=True):
        assert cut < 0.85 * whole


def test_parameters_wait_for_a_replica_that_still_reads_the_old_ones() -> None:
    model, x = spread(nn.Linear(4, 4))
    change(model.module)
    watch = Stopwatch()
    sleep(torch.cuda.current_stream(OTHER))
    model(x)
    assert watch.seconds(_event(OTHER, side_streams(OTHER).arriving)) > LATE


def test_parameters_wait_for_whoever_still_passes_them_on() -> None:
    model, x = spread(nn.Linear(4, 4), 3)
    change(model.module)
    watch = Stopwatch()
    sleep(side_streams(OTHER).leaving)
    model(x)
    assert watch.seconds(_event(OTHER, side_streams(OTHER).arriving)) > LATE


def test_a_batch_travels_beside_what_the_lead_computes() -> None:
    x = torch.randn(6, 4, device=LEAD)
    watch = Stopwatch()
    sleep(torch.cuda.current_stream(OTHER))
    part = anyrig.parallel.scatter(x, [LEAD, OTHER])[1]
    assert watch.now_on(LEAD) < SOON
    assert watch.now_on(OTHER) > LATE
    assert torch.equal(part.cpu(), x[3:].cpu())


@pytest.mark.parametrize("count", [1, 2])
def test_outputs_for_the_host_are_there_when_the_call_returns(count: int) -> None:
    device = first_devices(count).devices[-1].torch_device
    model = anyrig.spread(nn.Linear(4, 2).to(LEAD), first_devices(count), output_device="cpu")
    x = torch.randn(6, 4, device=LEAD)
    model(x)
    sleep(torch.cuda.current_stream(device))
    output = model(x)
    assert output.device.type == "cpu"
    assert torch.cuda.current_stream(device).query()


@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_is_where_outputs_are(count: int) -> None:
    rig = first_devices(count)
    module = nn.Linear(4, 2).to(LEAD)
    model = anyrig.spread(module, rig, loss=nn.MSELoss(), output_device="cpu")
    x = torch.randn(6, 4, device=LEAD)
    assert model(x, target=x[:, :2]).device.type == "cpu"


@pytest.mark.parametrize("late", ["the copy", "the replica", "the one between"])
def test_the_lead_waits_for_all_gradients(late: str) -> None:
    model, x = spread(nn.Linear(4, 4), 3)
    outputs = model.scattered(x)  # only gradients are copied
    ones = [torch.ones_like(output) for output in outputs]
    watch = Stopwatch()
    sleep(
        {
            "the copy": side_streams(LAST).leaving,
            "the replica": torch.cuda.current_stream(LAST),
            "the one between": torch.cuda.current_stream(OTHER),
        }[late]
    )
    torch.autograd.backward(outputs, ones)
    assert watch.now_on(LEAD) > LATE
