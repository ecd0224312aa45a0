"""Memory that is sent to another process while threads of this process use it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from anyrig.virtual import load_extension

DEVICE = torch.device("cuda", 4)
SECONDS = 60.0


def send(tensor: Tensor) -> Tensor:
    """Send `tensor` and receive it in this process."""
    device, handle, size, *rest = tensor.untyped_storage()._share_cuda_()
    received = torch.UntypedStorage._new_shared_cuda(device, handle, size, *rest)
    return torch.empty(0, device=DEVICE).set_(received)[: tensor.numel()]


@pytest.fixture
def operators() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("anyrig_sending", "DEF") as library:
        yield library


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.virtual_only("a real GPU does not run kernels for the CPU")
def test_a_running_kernel_keeps_its_memory(operators: torch.library.Library) -> None:
    running, sending = threading.Event(), threading.Event()

    def add_slowly(x: Tensor) -> None:
        running.set()
        assert sending.wait(SECONDS)
        time.sleep(0.3)  # the other thread is sending during this time
        x += 1

    operators.define("add_slowly(Tensor(a!) x) -> ()")
    operators.impl("add_slowly", add_slowly, "CPU")
    x = torch.arange(4.0, device=DEVICE)
    thread = in_a_thread(lambda: torch.ops.anyrig_sending.add_slowly.default(x))
    assert running.wait(SECONDS)
    sending.set()
    received = send(x)
    thread.join(SECONDS)

    assert received.tolist() == [1.0, 2.0, 3.0, 4.0]
    x += 1
    assert received.tolist() == x.tolist() == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.virtual_only("a real driver does not open a handle in the process that made it")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux lists a process's files")
def test_sent_storages_leave_no_file_open() -> None:
    def send_some() -> int:
        for _ in range(8):
            x = torch.ones(1024, device=DEVICE)
            received = send(x)
            del x, received
        torch.cuda.synchronize(DEVICE)
        return len(list(Path("/proc/self/fd").iterdir()))

    assert send_some() >= send_some()


@pytest.mark.virtual_only("a real driver does not open a handle in the process that made it")
def test_concurrent_writes_of_kernels_are_not_lost() -> None:
    steps = 40
    size = 2**18
    order, ones = torch.randperm(size, device=DEVICE), torch.ones(size, device=DEVICE)
    for _ in range(8):
        x = torch.zeros(size, device=DEVICE)
        started = threading.Event()

        def add(x: Tensor = x, started: threading.Event = started) -> None:
            for step in range(steps):
                x.index_add_(0, order, ones)
                if step == 5:
                    started.set()

        thread = in_a_thread(add)
        assert started.wait(SECONDS)
        received = send(x)
        thread.join(SECONDS)
        assert x.unique().tolist() == received.unique().tolist() == [float(steps)]


@pytest.mark.virtual_only("a real GPU does not run kernels for the CPU")
def test_memory_that_stays_in_use_is_not_sent(operators: torch.library.Library) -> None:
    kept: list[Tensor] = []
    operators.define("keep(Tensor x) -> ()")
    operators.impl("keep", kept.append, "CPU")
    x = torch.arange(4.0, device=DEVICE)
    torch.ops.anyrig_sending.keep.default(x)
    with pytest.raises(RuntimeError, match=r"cuda:4 cannot be sent .* after 0\.1 s; .* a clone"):
        load_extension().send_memory(x, 0.1)
    assert send(x.clone()).tolist() == [0.0, 1.0, 2.0, 3.0]
    kept.clear()
    assert send(x).tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.virtual_only("a real GPU does not run kernels for the CPU")
def test_a_kernel_may_keep_memory_that_the_program_frees(operators: torch.library.Library) -> None:
    kept: list[Tensor] = []
    operators.define("keep(Tensor x) -> ()")
    operators.impl("keep", kept.append, "CPU")
    torch.cuda.ipc_collect()
    before = torch.cuda.memory_allocated(DEVICE)
    for sent in (False, True):
        x = torch.full((1000,), 7.0, device=DEVICE)
        received = send(x) if sent else None
        torch.ops.anyrig_sending.keep.default(x)
        del x, received
        others = [torch.full((1000,), 8.0, device=DEVICE) for _ in range(8)]
        assert kept.pop().unique().tolist() == [7.0]
        del others
        torch.cuda.ipc_collect()
        assert torch.cuda.memory_allocated(DEVICE) == before


@pytest.mark.virtual_only("a real driver does not open a handle in the process that made it")
def test_memory_that_was_sent_and_used_is_freed_with_its_last_receiver() -> None:
    torch.cuda.ipc_collect()
    before = torch.cuda.memory_allocated(DEVICE)
    x = torch.ones(1000, device=DEVICE)
    received = send(x)
    x += 1
    del x
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated(DEVICE) == before + 4096
    assert received.unique().tolist() == [2.0]
    del received
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated(DEVICE) == before


@pytest.mark.virtual_only("a real driver does not open a handle in the process that made it")
def test_memory_that_a_graph_uses_is_not_sent() -> None:
    x = torch.ones(4, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(DEVICE), torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        x += 1
    with pytest.raises(RuntimeError, match="memory of a CUDA graph cannot be sent"):
        send(x)
    del graph
    assert send(x).tolist() == [1.0] * 4


@pytest.mark.virtual_only("a real driver does not open a handle in the process that made it")
def test_a_graph_uses_memory_that_was_sent() -> None:
    x = torch.ones(4, device=DEVICE)
    received = send(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(DEVICE), torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        x += 1
    graph.replay()
    torch.cuda.synchronize()
    assert send(x).tolist() == received.tolist() == x.tolist() == [2.0] * 4


def test_tensors_that_cannot_be_sent() -> None:
    with pytest.raises(RuntimeError, match="_share_cuda_: only available on CUDA"):
        torch.ones(1).untyped_storage()._share_cuda_()
    empty = torch.empty(0, device=DEVICE).untyped_storage()
    assert empty._share_cuda_() == (DEVICE.index, None, 0, 0, None, 0, None, None)
    event = torch.cuda.Event()
    event.record()
    with pytest.raises(torch.AcceleratorError, match="invalid resource handle"):
        event.ipc_handle()


def test_an_event_with_times_cannot_be_shared() -> None:
    event = torch.cuda.Event(interprocess=True, enable_timing=True)
    for use in (event.record, event.ipc_handle):  # each makes the event
        with pytest.raises(torch.AcceleratorError, match="invalid argument"):
            use()
