"""Prefetching to GPUs, real or virtual."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from anyrig.devices.device import Device
from anyrig.devices.rig import Rig
from anyrig.errors import MoveError
from anyrig.transfer import move, pin, prefetch
from anyrig.transfer.streams import copy_stream, using

pytestmark = pytest.mark.gpus(1)


@pytest.fixture
def gpu() -> torch.device:
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.device(accelerator.type, 0)


def worker_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("anyrig-prefetch")]


def assert_threads_end() -> None:
    for thread in worker_threads():
        thread.join(timeout=30)
    assert worker_threads() == []


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    assert_threads_end()


class Noise(Dataset[torch.Tensor]):
    """Draws each sample anew, as an augmentation does."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(3) + index


def make_loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(10.0), torch.arange(10)), batch_size=3, **options)


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_are_those_of_the_loader(gpu: torch.device, depth: int, pinned: bool) -> None:
    loader = make_loader(pin_memory=pinned)
    batches = prefetch(loader, gpu, depth=depth)
    assert len(batches) == len(loader)
    assert batches.dataset is loader.dataset
    for _ in range(2):
        for (x, y), (there_x, there_y) in zip(loader, batches, strict=True):
            assert there_x.device == there_y.device == gpu
            assert torch.equal(there_x.cpu(), x)
            assert torch.equal(there_y.cpu(), y)


def test_a_rig_means_its_lead(gpu: torch.device) -> None:
    rig = Rig((Device(gpu.type, gpu.index, "a GPU"),))
    assert next(iter(prefetch(make_loader(), rig)))[0].device == gpu


def test_random_numbers_are_drawn_as_in_the_plain_loop(gpu: torch.device) -> None:
    loader = DataLoader(Noise(), batch_size=4, shuffle=True)

    def draw(batches: Any) -> torch.Tensor:
        torch.manual_seed(0)
        return torch.cat([batch.cpu() for batch in batches])

    plain = draw(loader)
    assert torch.equal(draw(prefetch(loader, gpu)), plain)
    assert torch.equal(draw(prefetch(loader, gpu, depth=5)), plain)


def test_the_loader_runs_in_the_callers_thread(gpu: torch.device) -> None:
    threads = set()

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(5):
            threads.add(threading.get_ident())
            yield torch.ones(1)

    for _ in prefetch(batches(), gpu):
        pass
    assert threads == {threading.get_ident()}


def test_it_looks_no_further_ahead_than_its_depth(gpu: torch.device) -> None:
    drawn = 0

    def batches() -> Iterator[torch.Tensor]:
        nonlocal drawn
        for _ in range(10):
            drawn += 1
            yield torch.ones(1)

    for used, _ in enumerate(prefetch(batches(), gpu, depth=3), start=1):
        assert drawn == min(used + 3, 10)


def test_an_exception_of_the_loader_comes_in_its_place(gpu: torch.device) -> None:
    class Flaky:
        """Like a DataLoader, it can be asked on after an exception."""

        def __iter__(self) -> Flaky:
            self.count = 0
            return self

        def __next__(self) -> torch.Tensor:
            self.count += 1
            if self.count == 3:
                raise KeyError("third")
            if self.count > 5:
                raise StopIteration
            return torch.tensor(self.count)

    flaky = Flaky()
    batches = iter(prefetch(flaky, gpu))
    assert [next(batches).item() for _ in range(2)] == [1, 2]
    with pytest.raises(KeyError, match="third") as caught:
        next(batches)
    assert flaky.count == 3, "nothing was asked for beyond the exception"
    assert caught.traceback[-1].path.name == "test_prefetch_gpu.py"
    assert caught.traceback[-1].name == "__next__"
    assert [batch.item() for batch in batches] == [4, 5]


def test_the_thread_ends_with_the_loop(gpu: torch.device) -> None:
    batches = prefetch(make_loader(), gpu)
    iterator = iter(batches)
    next(iterator)
    assert len(worker_threads()) == 1
    for _ in iterator:
        pass
    assert worker_threads() == []
    assert list(iterator) == []


def leave_by_break(batches: Any) -> None:
    for _ in batches:
        break


def leave_by_return(batches: Any) -> Any:
    for batch in batches:
        return batch
    return None


def leave_by_exception(batches: Any) -> None:
    def use(batches: Any) -> None:
        for _ in batches:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use(batches)


def drop_the_iterator(batches: Any) -> None:
    next(iter(batches))


def close_the_iterator(batches: Any) -> None:
    iterator = iter(batches)
    next(iterator)
    iterator.close()
    assert worker_threads() == []
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize(
    "leave",
    [leave_by_break, leave_by_return, leave_by_exception, drop_the_iterator, close_the_iterator],
)
def test_the_thread_ends_when_the_loop_is_left_early(gpu: torch.device, leave: Any) -> None:
    batches = prefetch(make_loader(), gpu)
    leave(batches)
    assert_threads_end()
    assert len(list(batches)) == 4


def test_closing_lets_go_of_the_loader(gpu: torch.device) -> None:
    ended = []

    def batches() -> Iterator[torch.Tensor]:
        try:
            while True:
                yield torch.ones(1)
        finally:
            ended.append(True)  # as workers of a DataLoader end

    iterator: Any = iter(prefetch(batches(), gpu))
    next(iterator)
    iterator.close()
    gc.collect()
    assert ended == [True]


def test_copies_not_yet_begun_are_dropped_with_the_iterator(gpu: torch.device) -> None:
    begun = []

    class Slow:
        def to(self, device: Any) -> Slow:
            begun.append(self)
            time.sleep(0.2)
            return self

        def record_stream(self, stream: torch.Stream) -> None: ...

    next(iter(prefetch([Slow() for _ in range(8)], gpu, depth=7)))
    assert_threads_end()
    assert len(begun) < 8


def test_the_callers_stream_waits_for_the_copy(gpu: torch.device) -> None:
    (batch,) = prefetch([torch.ones(2**22).pin_memory()], gpu)
    torch.accelerator.current_stream(gpu).record_event().synchronize()
    stream = copy_stream(gpu, "to device")
    assert stream is not None
    assert stream.query()
    assert batch.device == gpu


def test_two_loops_at_once(gpu: torch.device) -> None:
    batches = prefetch(make_loader(), gpu)
    sums = [(a[1].sum() + b[1].sum()).item() for a, b in zip(batches, batches, strict=True)]
    assert sums == [6, 24, 42, 18]


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


def test_a_copy_that_takes_too_long(gpu: torch.device) -> None:
    class Slow:
        def to(self, device: Any) -> Slow:
            time.sleep(0.3)
            return self

        def record_stream(self, stream: torch.Stream) -> None: ...

    slow = Slow()
    iterator = iter(prefetch([slow], gpu, timeout_seconds=0.05))
    with pytest.raises(TimeoutError, match=r"not queued for copying to \w+:0 after 0.05 s"):
        next(iterator)
    time.sleep(0.4)
    assert next(iterator) is slow


@pytest.mark.gpus(2)
def test_the_worker_has_the_device_of_the_rig(gpu: torch.device) -> None:
    current = []

    class Curious:
        def to(self, device: Any) -> Curious:
            current.append(torch.accelerator.current_device_index())
            return self

        def record_stream(self, stream: torch.Stream) -> None: ...

    other = torch.device(gpu.type, 1)
    before = torch.accelerator.current_device_index()
    ((x, _),) = prefetch([(torch.ones(1), Curious())], other)
    assert x.device == other
    assert current == [1]
    assert torch.accelerator.current_device_index() == before


@pytest.mark.gpus(2)
def test_a_kind_without_index_is_the_device_current_at_the_call(gpu: torch.device) -> None:
    with torch.accelerator.device_index(1):
        batches = prefetch(make_loader(), gpu.type)
    assert {x.device.index for x, _ in batches} == {1}


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
