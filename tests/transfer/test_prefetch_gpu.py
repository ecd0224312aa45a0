"""Prefetching to GPUs, real or virtual."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from prefetch_threads import assert_threads_end, make_loader, worker_threads
from torch.utils.data import DataLoader, Dataset

from anyrig.devices.device import Device
from anyrig.devices.rig import Rig
from anyrig.transfer import prefetch

pytestmark = [pytest.mark.gpus(1), pytest.mark.usefixtures("no_thread_is_left_behind")]


class Noise(Dataset[torch.Tensor]):
    """Draws each sample anew, as an augmentation does."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(3) + index


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


def test_two_loops_at_once(gpu: torch.device) -> None:
    batches = prefetch(make_loader(), gpu)
    sums = [(a[1].sum() + b[1].sum()).item() for a, b in zip(batches, batches, strict=True)]
    assert sums == [6, 24, 42, 18]


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
