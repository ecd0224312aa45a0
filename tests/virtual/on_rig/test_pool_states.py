"""Checkpoints of a graph's memory pool, which compiled code restores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from anyrig.virtual import installation

DEVICE = 7  # used only by the tests of pools, history and temporaries
pytestmark = pytest.mark.usefixtures("own_device")
OTHER_LIBRARYS = 0x1000  # a stream, which a real driver would look up
VIRTUAL = installation() is not None

_C: Any = torch._C


def ones(size: int) -> torch.Tensor:
    return torch.ones(size, dtype=torch.uint8, device="cuda")


Made = list[torch.Tensor]


@functools.cache
def capture_stream() -> torch.cuda.Stream:
    """Return the stream of all captures: memory of one stream is not used again by another.

    Not the default capture stream, which would be created on this device and kept.
    """
    return torch.cuda.ExternalStream(OTHER_LIBRARYS) if VIRTUAL else torch.cuda.Stream()


def capture(work: Callable[[], Made], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Made]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=capture_stream()):
        results = work()
    return graph, results


def blocks(graph: torch.cuda.CUDAGraph) -> list[tuple[int, int, str]]:
    return [
        (block["address"], block["size"], block["state"])
        for segment in torch.cuda.memory_snapshot()
        if segment["segment_pool_id"] == graph.pool()
        for block in segment["blocks"]
    ]


def live(graph: torch.cuda.CUDAGraph) -> int:
    return [state for _, _, state in blocks(graph)].count("active_allocated")


def state_of(graph: torch.cuda.CUDAGraph) -> Any:
    return _C._cuda_getCheckpointState(DEVICE, graph.pool())


def restore(state: Any, stale: Made, owners: Made) -> None:
    storages = [[t.untyped_storage()._cdata for t in group] for group in (stale, owners)]
    _C._cuda_setCheckpointPoolState(DEVICE, state, *storages)


def small_and_large() -> Made:
    many = [ones(512) for _ in range(11)]
    return [many[5], many[8], ones(3_000_000), ones(100)]


def test_restoring_the_current_state_changes_nothing() -> None:
    graph, made = capture(small_and_large)
    before = blocks(graph)
    restore(state_of(graph), [], [])
    assert blocks(graph) == before
    assert live(graph) == len(made)
    del made
    assert live(graph) == 0


def test_freed_blocks_are_restored_and_freed_by_address() -> None:
    graph, made = capture(small_and_large)
    state, before = state_of(graph), blocks(graph)
    bytes_before = torch.cuda.memory_allocated()
    stats_before = torch.cuda.memory_stats()["inactive_split_bytes.all.current"]
    addresses = [tensor.data_ptr() for tensor in made]
    del made
    assert live(graph) == 0
    restore(state, [], [])
    assert blocks(graph) == before
    assert torch.cuda.memory_allocated() == bytes_before
    assert torch.cuda.memory_stats()["inactive_split_bytes.all.current"] == stats_before
    for left, address in zip((3, 2, 1, 0), addresses, strict=True):
        _C._cuda_cudaCachingAllocator_raw_delete(address)
        assert live(graph) == left


def test_new_blocks_are_freed_and_must_be_listed_as_stale() -> None:
    graph, made = capture(lambda: [ones(512)])
    state, before = state_of(graph), blocks(graph)
    second, later = capture(lambda: [ones(512)], pool=graph.pool())
    if VIRTUAL:  # a real GPU's allocator frees the blocks before it raises
        with pytest.raises(RuntimeError, match="manually freed must be passed to set checkpoint"):
            restore(state, [], [])
    restore(state, later, [])
    assert blocks(graph) == before
    del later, second
    assert live(graph) == len(made) == 1


def test_tensors_made_from_addresses_own_restored_memory() -> None:
    source = torch.tensor([1], device="cuda")
    graph, made = capture(lambda: [ones(100) + source, ones(3_000_000) + source])
    graph.replay()
    state = state_of(graph)
    address, size = made[0].untyped_storage().data_ptr(), made[0].untyped_storage().nbytes()
    other = made[1].untyped_storage().data_ptr()
    dtype = made[0].dtype
    del made
    storage = _C._construct_storage_from_data_pointer(address, torch.device("cuda", DEVICE), size)
    again = torch.empty(0, device="cuda", dtype=dtype).set_(storage, 0, (100,), (1,))
    assert again.tolist() == [2] * 100
    source += 1
    graph.replay()
    assert again.tolist() == [3] * 100
    assert not _C._has_Standard_Deleter(storage._cdata)
    restore(state, [], [again])
    assert _C._has_Standard_Deleter(storage._cdata)
    assert live(graph) == 2
    assert _C._tensors_data_ptrs_at_indices_equal([again], [address], [0])
    _C._free_And_Remove_DeleterFn(storage._cdata)
    assert live(graph) == 1
    del again, storage
    assert live(graph) == 1
    _C._cuda_cudaCachingAllocator_raw_delete(other)
    assert live(graph) == 0


def test_live_blocks_of_a_pool() -> None:
    graph, made = capture(lambda: [ones(4)])

    def holds(addresses: set[int]) -> bool:
        return bool(_C._cuda_checkPoolLiveAllocations(DEVICE, graph.pool(), addresses))

    assert holds({made[0].data_ptr()})
    assert not holds({made[0].data_ptr(), 0})
    assert not holds(set())
    del made
    assert holds(set())


def test_access_to_a_released_tensor_raises() -> None:
    tensor = ones(4)
    _C._set_storage_access_error_msg(tensor, "overwritten by a later run")
    for use in (tensor.data_ptr, tensor.sum):
        with pytest.raises(RuntimeError, match="overwritten by a later run"):
            use()


def test_access_to_a_released_storage_raises() -> None:
    tensor = ones(4)
    _C._set_storage_data_ptr_access_error_msg(tensor.untyped_storage()._cdata, "overwritten")
    for use in (tensor.data_ptr, tensor.sum):
        with pytest.raises(RuntimeError, match="overwritten"):
            use()


def test_tensors_that_graphs_keep_are_known() -> None:
    tensor = torch.ones(3, device="cuda")
    _C._set_cached_tensors_enabled(True)
    try:
        assert not _C._is_cached_tensor(tensor)
        _C._add_cached_tensor(tensor)
        assert _C._is_cached_tensor(tensor)
        _C._remove_cached_tensor(tensor)
        assert not _C._is_cached_tensor(tensor)
    finally:
        _C._set_cached_tensors_enabled(False)


def test_addresses_are_compared_at_the_places_given() -> None:
    tensors = [torch.ones(2, device="cuda") for _ in range(3)]
    equal = torch._C._tensors_data_ptrs_at_indices_equal
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert equal(tensors, addresses, [0, 1, 2])
    addresses[1] = 0
    assert equal(tensors, addresses, [0, 2])
    assert not equal(tensors, addresses, [0, 1])
    assert equal(tensors, addresses, [])


def test_a_tensor_is_made_over_memory_as_its_facts_say() -> None:
    base = torch.arange(6.0, device="cuda")
    facts = {"dtype": base.dtype, "device": base.device}
    place = {"storage_offset": 1, "size": (2, 2), "stride": (3, 1)}
    make = _C._construct_CUDA_Tensor_From_Storage_And_Metadata
    made = make({**facts, **place}, base.untyped_storage())
    assert made.tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert made.data_ptr() == base.data_ptr() + 4
