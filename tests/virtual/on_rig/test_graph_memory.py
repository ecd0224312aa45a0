"""The memory of CUDA graphs: pools, what a capture may write, and when it is released."""

from __future__ import annotations

import gc

import pytest
import torch
from captured_graphs import REGISTERS_GENERATORS, captured

# A capture that fails before its first kernel also leaves an empty graph.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
    pytest.mark.usefixtures("graph_device"),
]

DEVICE = 5  # used only by the tests of graphs
MIB = 2**20


def test_graphs_that_share_a_pool_share_its_memory() -> None:
    source = torch.ones(1000, device="cuda")
    made: dict[str, torch.Tensor] = {}
    stream = torch.cuda.Stream()

    def first() -> None:
        made["c"], made["d"] = source + 1, source + 2

    def second() -> None:
        made["e"] = made.pop("c") + 3

    def third() -> None:
        made["f"] = made["d"] + 4

    graph = captured(first, stream=stream)
    others = [captured(work, stream=stream, pool=graph.pool()) for work in (second, third)]
    for each in (graph, *others):
        each.replay()
    assert (made["e"][0], made["f"][0]) == (5, 7)
    for each in (graph, *reversed(others)):  # "f" reuses the memory of "c"
        each.replay()
    assert (made["e"][0], made["f"][0]) == (10, 7)


def test_a_capture_preserves_the_previous_contents_of_its_memory() -> None:
    source = torch.arange(1000.0, device="cuda")
    made = []
    stream = torch.cuda.Stream()
    graph = captured(lambda: made.append(source + 1), stream=stream)
    graph.replay()
    before = made.pop().tolist()  # then its memory is free
    other = captured(lambda: made.append(source * 0), stream=stream, pool=graph.pool())
    assert made[0].tolist() == before
    other.replay()
    assert made[0].tolist() == [0.0] * 1000


def test_a_capture_preserves_previous_contents_however_it_splits_blocks() -> None:
    source = torch.arange(1000.0, device="cuda")
    made: list[torch.Tensor] = []
    stream = torch.cuda.Stream()
    graph = captured(lambda: made.append(source + 1), stream=stream)
    graph.replay()
    before = made.pop().tolist()

    def work() -> None:
        source * 0  # the whole block, freed at once
        made.append(source[:100] * 0)  # a block of 512 bytes
        made.append(source[:500] * 0)

    other = captured(work, stream=stream, pool=graph.pool())
    assert [tensor.tolist() for tensor in made] == [before[:100], before[128:628]]
    other.replay()
    assert [tensor.sum().item() for tensor in made] == [0.0, 0.0]


@pytest.mark.skipif(not REGISTERS_GENERATORS, reason="from 2.12 on each graph has its own")
def test_the_graphs_of_a_generator_share_its_start_tensors() -> None:
    allocated = torch.cuda.memory_allocated()
    source = torch.ones(8, device="cuda")
    graphs = [captured(lambda: source.add_(1)) for _ in range(3)]
    assert torch.cuda.memory_allocated() == allocated + 512 + 2 * 512
    del graphs
    gc.collect()
    assert torch.cuda.memory_allocated() == allocated + 512


def test_a_capture_allocates_in_the_pool_of_the_graph() -> None:
    source = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    results = []
    graph = captured(lambda: results.append(source.clone().add_(1).clone()))
    # One is freed, one kept: both fit. The generator's start tensors are outside the pool.
    taken = 20 * MIB + (2 * MIB if REGISTERS_GENERATORS else 0)
    assert torch.cuda.memory_reserved() == reserved + taken
    peak = torch.cuda.max_memory_allocated()
    graph.replay()
    assert torch.cuda.max_memory_allocated() == peak
    (segment,) = (s for s in torch.cuda.memory_snapshot(graph.pool()))
    assert segment["segment_pool_id"] == graph.pool()
    results.clear()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved + taken  # the graph needs the addresses
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_a_graph_keeps_its_retained_pools() -> None:
    retain = getattr(torch.cuda.CUDAGraph, "_retain_pool", None)
    if retain is None:
        pytest.skip("this PyTorch's graphs retain no pools")
    graph = captured(lambda: torch.ones(1, device="cuda"))
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    for _ in range(2):  # once is enough
        retain(graph, pool.id)
    assert pool.use_count() == 2
    graph.reset()
    assert pool.use_count() == 1
