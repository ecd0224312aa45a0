"""Which objects are copied to a GPU ahead, in which stream and layout, and who waits."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from prefetch_threads import make_loader

from anyrig.errors import MoveError
from anyrig.transfer import move, pin, prefetch
from anyrig.transfer.streams import copy_stream, using

pytestmark = [pytest.mark.gpus(1), pytest.mark.usefixtures("no_thread_is_left_behind")]


def test_the_callers_stream_waits_for_the_copy(gpu: torch.device) -> None:
    (batch,) = prefetch([torch.ones(2**22).pin_memory()], gpu)
    torch.accelerator.current_stream(gpu).record_event().synchronize()
    stream = copy_stream(gpu, "to device")
    assert stream is not None
    assert stream.query()
    assert batch.device == gpu


def test_memory_is_not_reused_while_it_is_read(gpu: torch.device) -> None:
    """Each batch is dropped while kernels that read it are still queued."""
    size = 256
    batches = prefetch((torch.full((size, size), float(k)) for k in range(30)), gpu, depth=3)
    average = torch.full((size, size), 1 / size, device=gpu)
    outcomes = []
    for batch in batches:
        queued = average
        for _ in range(20):
            queued = queued @ average  # is `average` again, and takes a while
        outcomes.append((batch @ queued).mean())
        del batch
    torch.testing.assert_close(
        torch.stack(outcomes).cpu(), torch.arange(30.0), rtol=1e-3, atol=1e-3
    )


def test_the_consumer_may_have_a_stream_of_its_own(gpu: torch.device) -> None:
    stream = torch.Stream(gpu)
    with stream:
        sums = [x.sum() for x, _ in prefetch(make_loader(), gpu)]
    stream.synchronize()
    assert [value.item() for value in sums] == [3, 12, 21, 9]


def test_batches_of_an_inference_loop_are_ordinary_tensors(gpu: torch.device) -> None:
    """The mode may change between the copy, made ahead, and the use."""
    iterator = iter(prefetch(make_loader(), gpu))
    weight = torch.ones(1, device=gpu, requires_grad=True)
    with torch.inference_mode():
        (x, _) = next(iterator)
        assert not (x * weight).requires_grad
    for x, _ in iterator:
        (x * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == sum(range(3, 10))


def test_tensors_of_a_graph_are_copied_in_the_callers_modes(gpu: torch.device) -> None:
    weight = torch.ones(2, requires_grad=True)
    batches = [weight * 2, weight * 3]
    iterator = iter(prefetch(batches, gpu))
    next(iterator).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2]
    with torch.no_grad():
        assert not next(iterator).requires_grad


def test_objects_with_a_method_to_move_in_the_callers_thread(gpu: torch.device) -> None:
    class Own:
        def __init__(self, x: torch.Tensor, thread: int = 0) -> None:
            self.x, self.thread = x, thread

        def to(self, device: Any, non_blocking: bool = False) -> Own:
            return Own(self.x.to(device, non_blocking=non_blocking), threading.get_ident())

    (batch,) = prefetch([{"own": Own(torch.ones(1)), "x": torch.ones(1)}], gpu)
    assert batch["own"].x.device == batch["x"].device == gpu
    assert batch["own"].thread == threading.get_ident()


def test_objects_that_follow_streams_are_copied_ahead(gpu: torch.device) -> None:
    class Graph:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x
            self.thread, self.streams = 0, []

        def to(self, device: Any, non_blocking: bool = False) -> Graph:
            moved = Graph(self.x.to(device, non_blocking=non_blocking))
            moved.thread = threading.get_ident()
            return moved

        def record_stream(self, stream: torch.Stream) -> None:
            self.x.record_stream(stream)
            self.streams.append(stream)

    (batch,) = prefetch([Graph(torch.ones(1))], gpu)
    assert batch.x.device == gpu
    assert batch.thread != threading.get_ident()
    assert batch.streams == [torch.accelerator.current_stream(gpu)]


def test_sharing_and_other_values_are_kept(gpu: torch.device) -> None:
    x = torch.ones(2)
    (batch,) = prefetch([{"x": x, "same": [x], "id": "a"}], gpu)
    assert batch["x"] is batch["same"][0]
    assert batch["id"] == "a"
    assert list(prefetch([None, "text"], gpu)) == [None, "text"]


OVERLAPPING = {
    "expanded": lambda: torch.arange(3).expand(4, 3),
    "expanded inside": lambda: torch.randn(4, 1, 3).expand(4, 5, 3),
    "windows": lambda: torch.arange(6.0).unfold(0, 3, 1),
    "strided": lambda: torch.arange(9.0).as_strided((3, 4), (2, 1)),
    "transposed": lambda: torch.randn(3, 4).t(),
    "every other": lambda: torch.randn(6, 4)[::2, 1:],
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_copy_is_laid_out_as_move_lays_it_out(gpu: torch.device, name: str) -> None:
    tensor = OVERLAPPING[name]()
    (there,) = prefetch([tensor], gpu)
    moved = move(tensor, gpu)
    assert there.device == gpu
    assert torch.equal(there.cpu(), tensor)
    assert there.stride() == moved.stride()
    assert pin(tensor).is_pinned()
    assert torch.equal(pin(tensor), tensor)


def test_objects_of_fields_are_copied_ahead(gpu: torch.device) -> None:
    class Fields:
        __attrs_attrs__ = ("x",)

        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

    (batch,) = prefetch([Fields(torch.ones(2))], gpu)
    assert type(batch) is Fields
    assert batch.x.device == gpu


def test_a_batch_that_cannot_be_moved_is_refused_in_its_place(gpu: torch.device) -> None:
    hidden = SimpleNamespace(x=torch.ones(1))
    iterator = iter(prefetch([torch.ones(1), hidden, torch.ones(1)], gpu))
    assert next(iterator).device == gpu
    with pytest.raises(MoveError, match="SimpleNamespace at the value"):
        next(iterator)
    assert next(iterator).device == gpu


@pytest.mark.gpus(2)
def test_tensors_of_another_device_are_moved_too(gpu: torch.device) -> None:
    other = torch.device(gpu.type, 1)
    source = (torch.full((2,), float(k), device=gpu) for k in range(4))
    batches = list(prefetch(source, other))
    assert [batch.sum().item() for batch in batches] == [0, 2, 4, 6]
    assert all(batch.device == other for batch in batches)


def test_the_host_does_not_wait_for_the_copy_of_a_batch(gpu: torch.device) -> None:
    source = torch.zeros(2**22)
    # The allocators keep what this takes: allocating memory may wait for the GPU.
    assert [batch.device for batch in prefetch([source], gpu)] == [gpu]
    torch.accelerator.synchronize(gpu)
    stream = copy_stream(gpu, "to device")
    assert stream is not None
    with using(stream):
        torch.cuda._sleep(10**9)  # half a second, for which the copy waits
    (batch,) = prefetch([source], gpu)
    event = torch.accelerator.current_stream(gpu).record_event()
    assert not event.query(), "memory that is not pinned is waited for"
    event.synchronize()
    assert batch.eq(0).all()
