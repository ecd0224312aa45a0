"""What is sent to the other devices, when, and along which path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import anyrig
from anyrig.parallel.engines.replicas.broadcast import Broadcast

pytestmark = [
    pytest.mark.gpus(4),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]


class Copies(TorchDispatchMode):
    """Notes what is copied from one device to another, and from which addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, int]] = []
        self.sources: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if function is torch.ops.aten.copy_.default and args[0].device != args[1].device:
            self.seen.append((str(args[1].device), str(args[0].device), args[0].numel()))
            self.sources.add(args[1].data_ptr())
        return function(*args, **(kwargs or {}))


def spread(module: nn.Module, count: int = 3, **options: Any) -> Any:
    text = ",".join(f"cuda:{index}" for index in range(count))
    return anyrig.spread(module.to("cuda:0"), anyrig.Rig.parse(text), **options)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the buckets that are sent to each device."""
    counts: list[int] = []
    send = Broadcast._send

    def counting(self: Broadcast, bucket: Any, pieces: Any, lacking: Any) -> None:
        counts.append(len(lacking))
        send(self, bucket, pieces, lacking)

    monkeypatch.setattr(Broadcast, "_send", counting)
    return counts


def test_each_device_passes_on_what_it_has() -> None:
    model = spread(nn.Linear(40, 40, bias=False), 4)
    with Copies() as copies:
        model(torch.randn(8, 40, device="cuda:0"))
    parameters = [(a, b) for a, b, numel in copies.seen if numel == 1600]
    assert parameters == [("cuda:0", "cuda:1"), ("cuda:1", "cuda:2"), ("cuda:2", "cuda:3")]


def test_buffers_are_sent_from_copies_and_large_parameters_from_where_they_are() -> None:
    """The lead may write its buffers, not its parameters, while they are on their way."""
    norm = nn.BatchNorm1d(2**18)  # tensors of 1 MiB
    model = spread(norm, 2)
    with Copies() as copies:
        model(torch.randn(4, 2**18, device="cuda:0"))
    assert {p.data_ptr() for p in norm.parameters()} < copies.sources
    assert {b.data_ptr() for b in norm.buffers()}.isdisjoint(copies.sources)


def test_gradients_come_the_same_way_back() -> None:
    model = spread(nn.Linear(40, 40, bias=False), 4)
    loss = model(torch.randn(8, 40, device="cuda:0")).sum()
    with Copies() as copies:
        loss.backward()
    # The node that adds gradients runs in this thread, where the mode is active.
    gradients = [(a, b) for a, b, numel in copies.seen if numel == 1600]
    assert gradients == [("cuda:3", "cuda:2"), ("cuda:2", "cuda:1"), ("cuda:1", "cuda:0")]


def test_only_what_changed_is_sent(sent: list[int]) -> None:
    frozen = nn.Linear(4, 4).requires_grad_(False)
    model = spread(nn.Sequential(frozen, nn.Linear(4, 4), nn.BatchNorm1d(4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(6, 4, device="cuda:0")

    def sent_by_a_step(rows: int = 6) -> list[int]:
        sent.clear()
        model(x[:rows]).sum().backward()
        return sent.copy()

    assert sent_by_a_step() == [2] * 4  # frozen, learning, running statistics, their count
    optimizer.step()
    assert sent_by_a_step() == [2] * 3
    model.eval()
    sent_by_a_step()
    sent.clear()
    with torch.no_grad():
        model(x)
        sent.clear()
        model(x)
        assert sent == []
        frozen.weight.zero_()
        model(x)
    assert sent == [2]


def test_a_device_without_rows_gets_its_copies_later(sent: list[int]) -> None:
    model = spread(nn.Linear(4, 4))
    x = torch.randn(6, 4, device="cuda:0")
    with torch.no_grad():
        model(x[:2])
        model(x[:2])
        assert sent == [1]
        torch.testing.assert_close(model(x), model.module(x))
    assert sent == [1, 1]


@pytest.mark.parametrize("begin", [nn.Identity, nn.BatchNorm1d], ids=lambda kind: kind.__name__)
def test_a_replica_computes_while_the_rest_arrives(begin: type[nn.Module]) -> None:
    """Seven layers of 16 MiB arrive between its first and its last layer, by the virtual clock."""
    width = 2048
    linear = nn.Linear(width, width, bias=False)
    first_layer = nn.Sequential(begin(width), linear)
    module = nn.Sequential(first_layer, *(nn.Linear(width, width, bias=False) for _ in range(7)))
    model = spread(module, 2)
    x = torch.randn(4, width, device="cuda:0")
    marks: list[torch.cuda.Event] = []

    def mark(layer: nn.Module, args: Any, output: Tensor) -> None:
        if output.get_device() == 1:
            marks.append(torch.cuda.current_stream(1).record_event(_timed()))

    with torch.no_grad():
        model(x)
        for parameter in module.parameters():
            parameter.zero_()
        for layer in (first_layer, module[7]):
            layer.register_forward_hook(mark)
        model(x)
    torch.cuda.synchronize(1)
    first, last = marks
    rate = 300e9  # of NVLink between two A100, in one direction
    assert first.elapsed_time(last) / 1e3 > 6 * width * width * 4 / rate


def _timed() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def test_values_do_not_change_under_a_replica_that_still_computes() -> None:
    """A queued forward reads the values of its own step, whatever follows."""
    model = spread(nn.Linear(512, 512, bias=False), 2)
    x = torch.eye(512, device="cuda:0")
    outputs = []
    with torch.no_grad():
        for value in range(5):
            model.module.weight.fill_(value)
            outputs.append(model(x))
    for value, output in enumerate(outputs):
        assert output.eq(value).all()


def test_a_parameter_changed_between_forward_and_backward_is_told() -> None:
    model = spread(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 2)
    x = torch.randn(4, 4, device="cuda:0")
    loss = model(x).sum()
    with torch.no_grad():
        model.module[1].weight.mul_(2)
        model(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_change_that_reaches_a_device_with_a_later_one_is_told() -> None:
    model = spread(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    x = torch.randn(6, 4, device="cuda:0")
    loss = model.scattered(x)[2].sum()  # only the graph of the last device
    with torch.no_grad():
        model.module[1].weight.mul_(2)
        model(x[:4])  # no sample for the last device
        model.module[1].bias.mul_(2)
        model(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_another_parameter_of_the_same_bucket_may_change() -> None:
    model = spread(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 2)
    x = torch.randn(4, 4, device="cuda:0")
    loss = model(x).sum()
    with torch.no_grad():
        model.module[1].bias.mul_(2)  # no gradient needs it
        model(x)
    loss.backward()
