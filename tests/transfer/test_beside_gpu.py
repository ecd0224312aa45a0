"""Copies concurrent with computation, between the host and GPUs, real or virtual."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyrig.transfer import copy_to_host
from anyrig.transfer.beside import copy_beside

CPU = torch.device("cpu")
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


class Stopwatch:
    """How long the current stream of a device is busy between two moments, in milliseconds."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._start = torch.cuda.Event(enable_timing=True)
        self._start.record(self._stream)

    def stop(self) -> float:
        end = torch.cuda.Event(enable_timing=True)
        end.record(self._stream)
        end.synchronize()
        return self._start.elapsed_time(end)


def big(device: torch.device) -> Tensor:
    return torch.zeros(4 * 2**20, device=device)


@pytest.mark.gpus(2)
@pytest.mark.parametrize(
    ("source", "target"),
    [(CPU, FIRST), (FIRST, CPU), (FIRST, SECOND), (SECOND, FIRST), (CPU, CPU), (FIRST, FIRST)],
)
def test_values_arrive(source: torch.device, target: torch.device) -> None:
    x = torch.randn(100, 7, device=source)[:, 2:5]
    there = copy_beside(x, target)
    assert there.device == target
    assert torch.equal(there.cpu(), x.cpu())
    assert (there is x) == (source == target)


@pytest.mark.gpus(2)
def test_the_source_goes_on_while_it_is_copied_and_the_target_waits() -> None:
    x = big(FIRST)
    copy_beside(x, SECOND)  # makes the stream, and peer access on real GPUs
    torch.cuda.synchronize(FIRST)
    torch.cuda.synchronize(SECOND)
    source, target = Stopwatch(FIRST), Stopwatch(SECOND)
    copy_beside(x, SECOND)
    source_milliseconds, target_milliseconds = source.stop(), target.stop()
    assert source_milliseconds < 0.5 * target_milliseconds


@pytest.mark.gpus(2)
def test_a_copy_between_devices_waits_for_what_was_queued_before_it() -> None:
    x = big(FIRST)
    torch.cuda.synchronize(FIRST)
    work = Stopwatch(FIRST)
    target = Stopwatch(SECOND)
    for _ in range(60):
        x += 1
    copied = copy_beside(x, SECOND)
    assert target.stop() > 0.8 * work.stop()
    assert copied.eq(60).all()


@pytest.mark.gpus(1)
def test_a_copy_from_the_host_does_not_wait_for_what_the_target_computes() -> None:
    host = big(CPU)
    copy_beside(host, FIRST)
    torch.cuda.synchronize()
    watch = Stopwatch(FIRST)
    copy_beside(host, FIRST)
    copying_milliseconds = watch.stop()
    assert copying_milliseconds > 1e3 * host.nbytes / 128e9  # no faster than any host link
    factors = torch.zeros(2048, 2048, device=FIRST)
    watch = Stopwatch(FIRST)
    for _ in range(2):
        factors = factors @ factors
    computing = Stopwatch(FIRST)  # begins after all of it
    copy_beside(host, FIRST)
    # On one stream the copy would begin where the computation ends.
    assert computing.stop() < 0.9 * copying_milliseconds
    assert watch.stop() > copying_milliseconds


@pytest.mark.gpus(2)
def test_memory_is_not_used_again_while_it_is_copied() -> None:
    for _ in range(10):
        x = torch.full((2**20,), 3.0, device=FIRST)
        copied = copy_beside(x, SECOND)
        del x
        torch.full((2**20,), 4.0, device=FIRST)
        assert copied.eq(3).all()
        from_host = copy_beside(torch.full((2**20,), 5.0), FIRST)
        torch.full((2**20,), 4.0)
        assert from_host.eq(5).all()


@pytest.mark.gpus(2)
def test_what_is_not_dense_memory_is_copied_too() -> None:
    for x in (torch.eye(3).to_sparse(), torch.eye(3, requires_grad=True)):
        for there in (copy_beside(x, FIRST), copy_beside(copy_beside(x, SECOND), FIRST)):
            assert there.device == FIRST
            assert torch.equal(there.to_dense().detach().cpu(), torch.eye(3))
            assert there.requires_grad == x.requires_grad


@pytest.mark.gpus(2)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_copied_too() -> None:
    there = copy_beside(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), FIRST)
    for nested in (there, copy_beside(there, SECOND), copy_to_host(there, beside=True).value):
        assert [part.tolist() for part in nested.unbind()] == [[1], [1, 1]]


@pytest.mark.gpus(1)
def test_to_and_from_no_memory_at_all() -> None:
    x = torch.ones(2, device=FIRST)
    meta = copy_beside(x, torch.device("meta"))
    assert (meta.device.type, meta.shape) == ("meta", (2,))
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        copy_beside(meta, FIRST)


@pytest.mark.gpus(1)
def test_a_copy_to_the_cpu_can_be_read_at_once() -> None:
    x = torch.ones(2, device=FIRST)
    torch.cuda._sleep(10**8)
    event = torch.cuda.current_stream(FIRST).record_event()
    assert copy_beside(x, CPU).tolist() == [1, 1]
    assert event.query()


@pytest.mark.gpus(1)
def test_the_host_does_not_wait_for_a_copy_from_its_memory() -> None:
    host = big(CPU)
    copy_beside(host, FIRST)
    torch.cuda.synchronize()
    copied = copy_beside(host, FIRST)
    assert not torch.cuda.current_stream(FIRST).query()
    assert copied.sum() == 0
