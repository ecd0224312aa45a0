"""Memory pools that the program creates: torch.cuda.MemPool."""

from __future__ import annotations

import ctypes.util
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from device_memory import take

DEVICE = 7  # used only by the tests of pools, history and temporaries
pytestmark = pytest.mark.usefixtures("own_device")
MIB = 2**20


def test_allocations_of_the_scope_go_to_the_pool() -> None:
    outside = take(1)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = take(1)
    assert pool.use_count() == 1
    assert torch.cuda.memory_reserved() == 4 * MIB
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id
    assert segment["allocated_size"] == 512
    del inside
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 4 * MIB  # a pool in use keeps its segments
    del pool
    assert torch.cuda.memory_reserved() == 2 * MIB
    del outside


def in_another_thread(size: int) -> torch.Tensor:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: take_on(DEVICE, size)).result(timeout=60)


def take_on(device: int, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")


def sizes_in(pool: torch.cuda.MemPool) -> list[int]:
    return [segment["allocated_size"] for segment in pool.snapshot()]


@pytest.mark.gpus(2)
def test_the_scope_applies_to_one_thread_and_one_device() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = [take(1), take_on(0, 1), in_another_thread(1)]
        with torch.cuda.stream(torch.cuda.Stream()):
            kept.append(take(1))
    assert sizes_in(pool) == [512, 512]  # one per stream
    del kept


def test_a_pool_may_serve_one_stream() -> None:
    library: Any = torch._C
    pool = torch.cuda.MemPool()
    with pytest.raises(RuntimeError, match="Expected stream capture to be under way"):
        library._cuda_beginAllocateCurrentStreamToPool(DEVICE, pool.id)  # the default stream
    with torch.cuda.stream(torch.cuda.Stream()):
        library._cuda_beginAllocateCurrentStreamToPool(DEVICE, pool.id)
        try:
            kept = [take(1), take(1), in_another_thread(1)]
            with torch.cuda.stream(torch.cuda.Stream()):
                kept.append(take(1))
        finally:
            library._cuda_endAllocateToPool(DEVICE, pool.id)
            library._cuda_releasePool(DEVICE, pool.id)
    assert sizes_in(pool) == [1024]
    del kept


def test_pool_ids_show_who_created_them() -> None:
    pools = [torch.cuda.MemPool() for _ in range(2)]
    assert [pool.id[0] for pool in pools] == [0, 0]
    assert pools[1].id[1] == pools[0].id[1] + 1 > 1
    assert torch.cuda.graph_pool_handle()[0] == 0
    graph = torch.cuda.CUDAGraph()
    # The default capture stream is kept for later captures on all devices.
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        torch.ones(1, device="cuda")
    assert graph.pool()[0] > 0
    assert graph.pool()[1] == 0


def test_a_tensor_keeps_the_segment_of_a_deleted_pool() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = take(3 * MIB)
    del pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 20 * MIB
    del kept
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


@pytest.mark.whole_gpu
def test_a_pool_may_serve_other_requests_before_memory_runs_out() -> None:
    total = torch.cuda.mem_get_info()[1]
    size = total // 2 + MIB
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        del_me = take(size)
    del del_me
    served = take(size)
    assert torch.cuda.memory_reserved() < total
    del served, pool


def test_a_pool_may_not_split_segments() -> None:
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        tensors = [take(1), take(1)]
    assert [segment["total_size"] for segment in pool.snapshot()] == [2 * MIB, 2 * MIB]
    del tensors


@pytest.mark.virtual_only("only virtual GPUs refuse this")
def test_an_allocator_of_the_program_is_refused() -> None:
    with pytest.raises(TypeError):
        torch.cuda.MemPool(object())  # type: ignore[arg-type]
    library = ctypes.util.find_library("c")
    assert library is not None
    with pytest.raises(RuntimeError, match="needs the memory of a real GPU"):
        torch.cuda.memory.CUDAPluggableAllocator(library, "malloc", "free")


def test_out_of_memory_message_has_the_bytes_of_private_pools() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        take(3 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=r"with 20\.00 MiB allocated in private pools"):
        take(2**40)
    del pool
