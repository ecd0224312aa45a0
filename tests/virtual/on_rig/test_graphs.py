"""CUDA graphs: captures, replays, and the operations that a capture rejects."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anyrig.virtual import installation

# A capture that fails before its first kernel also leaves an empty graph.
pytestmark = pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")

DEVICE = 5  # used by no other test
MIB = 2**20

# Whether generators other than the default one must be registered before the capture.
REGISTERS_GENERATORS = torch.__version__ < (2, 12)


@pytest.fixture(autouse=True)
def own_device() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # as in conftest.py: later collections skip PyTorch
    with torch.cuda.device(DEVICE):
        # A failed capture leaves its stream as the current stream.
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        yield
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.synchronize()


def captured(work: Callable[[], object], **options: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):  # type: ignore[arg-type]
        work()
    return graph


# ---- replay


def test_replay_reads_the_current_values_of_its_inputs() -> None:
    source = torch.full((1000,), 1.0, device="cuda")
    results = []
    graph = captured(lambda: results.append(source * 2 + 1))
    source.fill_(5)
    graph.replay()
    assert torch.equal(results[0], torch.full((1000,), 11.0, device="cuda"))


class Wrapped(torch.Tensor):
    """A tensor whose operators run on another tensor, as those of DTensor do."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Wrapped:
        inner = [each.inner if isinstance(each, Wrapped) else each for each in args]
        return Wrapped(func(*inner, **(kwargs or {})))


def test_replay_runs_the_operators_that_a_wrapper_runs() -> None:
    source = torch.full((8,), 1.0, device="cuda")
    results = []
    graph = captured(lambda: results.append(Wrapped(source) * 2 + Wrapped(source)))
    source.fill_(5)
    graph.replay()
    assert torch.equal(results[0].inner, torch.full((8,), 15.0, device="cuda"))


def test_a_capture_writes_nothing() -> None:
    total = torch.zeros(8, device="cuda")
    pinned = torch.zeros(8).pin_memory()

    def work() -> None:
        total.add_(1)
        pinned.copy_(total, non_blocking=True)

    graph = captured(work)
    assert total.sum() == 0
    assert pinned.sum() == 0
    graph.replay()
    graph.replay()
    assert total.sum() == 16
    assert pinned.sum() == 16


def test_host_numbers_are_constants_of_the_capture() -> None:
    factor = torch.tensor(3.0)
    source = torch.ones(4, device="cuda")
    results = []
    graph = captured(lambda: results.append(source * factor))
    factor.fill_(7)
    graph.replay()
    assert results[0].tolist() == [3.0] * 4


def test_calls_within_a_dispatch_mode_are_captured() -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    source = torch.ones(8, device="cuda")
    results = []

    def work() -> None:
        with Mode():
            results.append(source * 2)

    graph = captured(work)
    source.fill_(5)
    graph.replay()
    assert results[0].sum() == 80


def test_a_dropped_input_is_still_read() -> None:
    inputs = [torch.full((100,), 2.0, device="cuda")]
    result = torch.zeros(100, device="cuda")
    graph = captured(lambda: result.copy_(inputs[0]))
    before = torch.cuda.memory_allocated()
    inputs.clear()
    assert torch.cuda.memory_allocated() == before - 512
    graph.replay()
    assert result.sum() == 200


def test_replay_reads_all_kinds_of_views() -> None:
    source = torch.tensor([1 + 2j, 3 + 4j, 5 + 6j], device="cuda")
    indices = [torch.tensor([2, 0], device="cuda")]
    results: list[torch.Tensor] = []

    def work() -> None:
        results.append(source.conj() * 1)
        results.append(source.conj().imag + 0)
        results.append(source[1:].real + 0)
        results.append(source[indices[0]] + 0)

    graph = captured(work)
    before = torch.cuda.memory_allocated()
    indices.clear()
    assert torch.cuda.memory_allocated() == before - 512
    source.mul_(2)
    graph.replay()
    assert [result.tolist() for result in results] == [
        [2 - 4j, 6 - 8j, 10 - 12j],
        [-4.0, -8.0, -12.0],
        [6.0, 10.0],
        [10 + 12j, 2 + 4j],
    ]


def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2))
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 4)).cuda()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)


def train(graphed: bool, steps: int = 4) -> list[torch.Tensor]:
    model, optimizer = network()
    torch.cuda.manual_seed(7)
    batches = torch.randn(
        steps, 8, 16, generator=torch.Generator("cuda").manual_seed(1), device="cuda"
    )
    batch = batches[0].clone()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    run = captured(step).replay if graphed else step
    for values in batches:
        batch.copy_(values)
        run()
    return [*(p.detach() for p in model.parameters()), *model.buffers()]


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")
def test_a_captured_training_step_trains_like_the_eager_step() -> None:
    for graphed, eager in zip(train(True), train(False), strict=True):
        assert torch.equal(graphed, eager)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_graphed_callables_give_gradients() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3).cuda()
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(5, 8, device="cuda"),))
    inputs = torch.randn(5, 8, device="cuda")
    graphed(inputs).sum().backward()
    expected = inputs.sum(0).expand(3, 8)
    torch.testing.assert_close(model.weight.grad, expected)


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


# ---- random numbers


def test_a_replay_draws_the_numbers_of_eager_calls() -> None:
    results = []
    torch.cuda.manual_seed(11)
    graph = captured(
        lambda: results.extend([torch.rand(100, device="cuda"), torch.randn(50, device="cuda")])
    )
    generator = torch.cuda.default_generators[DEVICE]
    for _ in range(2):
        state = generator.get_state()
        graph.replay()
        drawn = [result.clone() for result in results]
        after = generator.get_offset()
        generator.set_state(state)
        assert torch.equal(drawn[0], torch.rand(100, device="cuda"))
        assert torch.equal(drawn[1], torch.randn(50, device="cuda"))
        assert generator.get_offset() == after


def test_a_graph_draws_from_the_state_it_was_captured_with() -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    state = generator.graphsafe_get_state()
    results = []
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        results.append(torch.rand(8, device="cuda", generator=generator))
    generator.graphsafe_set_state(torch.Generator("cuda").manual_seed(99).graphsafe_get_state())
    graph.replay()
    assert state.get_offset() == 4
    assert generator.get_offset() == 0
    expected = torch.rand(8, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    assert torch.equal(results[0], expected)


def test_a_generator_cannot_be_changed_in_a_capture() -> None:
    generator = torch.cuda.default_generators[DEVICE]
    words = "Cannot call CUDAGeneratorImpl::set_offset during CUDA graph capture"
    with pytest.raises(RuntimeError, match=words):
        captured(lambda: generator.set_offset(8))
    with pytest.raises(RuntimeError, match="only if new seed is the same as the original seed"):
        captured(lambda: generator.manual_seed(generator.initial_seed() + 1))


@pytest.mark.skipif(not REGISTERS_GENERATORS, reason="from 2.12 on a graph finds its generators")
def test_a_generator_must_be_registered_with_its_graph() -> None:
    generator = torch.Generator("cuda")
    with pytest.raises(RuntimeError, match="for a CUDA generator not in capture mode"):
        captured(lambda: torch.rand(8, device="cuda", generator=generator))


# ---- bytes


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


# ---- operations that a capture rejects


def replayable_afterwards() -> None:
    source = torch.ones(3, device="cuda")
    results = []
    captured(lambda: results.append(source + 1)).replay()
    assert results[0].tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "call",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor.nonzero(),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: torch.cuda.synchronize(),
        lambda tensor: torch.cuda.current_stream().synchronize(),
        lambda tensor: torch.cuda.current_stream().query(),
        lambda tensor: tensor.copy_(torch.ones(4).pin_memory()),
    ],
)
def test_waiting_for_the_stream_invalidates_the_capture(
    call: Callable[[torch.Tensor], object],
) -> None:
    tensor = torch.ones(4, device="cuda")
    reason = "operation not permitted when stream is capturing"

    def work() -> None:
        with pytest.raises(torch.AcceleratorError, match=reason) as first:
            call(tensor)
        assert first.value.error_code == 900

    with pytest.raises(torch.AcceleratorError, match="failed due to a previous error") as second:
        captured(work)
    assert second.value.error_code == 901
    assert not torch.cuda.is_current_stream_capturing()


def test_pageable_host_memory_cannot_be_copied() -> None:
    with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
        captured(lambda: torch.ones(3).cuda(non_blocking=True))
    replayable_afterwards()


def test_an_event_of_a_capture_cannot_be_queried() -> None:
    event = torch.cuda.Event()

    def work() -> None:
        event.record()
        with pytest.raises(torch.AcceleratorError, match="last recorded in a capturing stream"):
            event.query()

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(work)


def test_streams_join_a_capture_through_events() -> None:
    source = torch.ones(4, device="cuda")
    side = torch.cuda.Stream()
    results = []

    def work(join: bool) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            results.append(source + 1)
        if join:
            torch.cuda.current_stream().wait_stream(side)

    with pytest.raises(torch.AcceleratorError, match="unjoined work"):
        captured(lambda: work(join=False))
    graph = captured(lambda: work(join=True))
    source.fill_(4)
    graph.replay()
    assert results[-1].tolist() == [5.0] * 4


def test_a_capture_cannot_wait_for_work_outside_of_it() -> None:
    event = torch.cuda.Event()
    event.record()

    def work() -> None:
        with pytest.raises(torch.AcceleratorError, match="uncaptured work in another stream"):
            torch.cuda.current_stream().wait_event(event)

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(work)
    replayable_afterwards()


def test_two_captures_cannot_be_merged() -> None:
    other, side, event = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Event()

    def work() -> None:
        event.record()
        with torch.cuda.stream(side):
            other.capture_begin(capture_error_mode="relaxed")
            with pytest.raises(torch.AcceleratorError, match="merge of separate capture"):
                side.wait_event(event)
            with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
                other.capture_end()

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(work)
    replayable_afterwards()


def test_the_default_stream_cannot_wait_for_a_capture() -> None:
    event = torch.cuda.Event()

    def work() -> None:
        event.record()
        with pytest.raises(torch.AcceleratorError, match="make the legacy stream depend on a"):
            torch.cuda.default_stream().wait_event(event)

    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        captured(work)
    replayable_afterwards()


def test_a_replay_waits_for_the_end_of_a_capture() -> None:
    graph = captured(lambda: torch.ones(1, device="cuda"))

    def work() -> None:
        if REGISTERS_GENERATORS:  # found on the host, before the call that ends the capture
            with pytest.raises(RuntimeError, match="Cannot prepare for replay during capturing"):
                graph.replay()
            torch.ones(1, device="cuda")
            return
        with pytest.raises(torch.AcceleratorError, match="when stream is capturing"):
            graph.replay()

    if REGISTERS_GENERATORS:
        captured(work)
    else:
        with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
            captured(work)
    graph.replay()


@pytest.mark.gpus(2)
def test_another_device_may_be_waited_for_in_a_capture() -> None:
    source = torch.ones(3, device="cuda")
    results = []

    def work() -> None:
        torch.cuda.synchronize(0)
        results.append(source + 1)

    captured(work).replay()
    assert results[0].tolist() == [2.0] * 3


def test_before_2_14_a_capture_that_fails_keeps_its_memory() -> None:
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()

    def work() -> None:
        torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()

    with pytest.raises(torch.AcceleratorError):
        captured(work)
    gc.collect()
    torch.cuda.empty_cache()
    kept = 20 * MIB if torch.__version__ < (2, 14) else 0
    assert torch.cuda.memory_reserved() == reserved + kept


@pytest.mark.skipif(torch.__version__ >= (2, 13), reason="from 2.13 on the capture ends")
def test_before_2_13_no_cache_is_emptied_once_a_capture_has_failed() -> None:
    with pytest.raises(torch.AcceleratorError):
        captured(torch.cuda.synchronize)
    del_me = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del del_me
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_the_default_stream_cannot_be_captured() -> None:
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()


@pytest.mark.skipif(
    installation() is None and REGISTERS_GENERATORS,
    reason="before 2.12 the destructor of a graph that was refused raises, which ends the process",
)
def test_a_stream_is_captured_once() -> None:
    kind, words = (
        (RuntimeError, "Cannot register the state during capturing stage")
        if REGISTERS_GENERATORS
        else (torch.AcceleratorError, "cannot be performed in the present state")
    )

    def work() -> None:
        with pytest.raises(kind, match=words):
            torch.cuda.CUDAGraph().capture_begin()

    captured(lambda: (work(), torch.ones(1, device="cuda")))


def test_another_stream_cannot_reserve_memory_during_a_capture() -> None:
    other = torch.cuda.Stream()

    def work() -> None:
        with torch.cuda.stream(other), pytest.raises(torch.AcceleratorError, match="capturing"):
            torch.empty(64 * MIB, device="cuda")

    with pytest.raises(torch.AcceleratorError, match="previous error"):
        captured(work)
    relaxed = captured(
        lambda: (_empty_on(other), torch.ones(1, device="cuda")), capture_error_mode="relaxed"
    )
    relaxed.replay()


def test_another_thread_may_reserve_memory_during_a_thread_local_capture() -> None:
    other = torch.cuda.Stream()

    def work() -> None:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(_empty_on, other).result(timeout=60)
        torch.ones(1, device="cuda")

    captured(work, capture_error_mode="thread_local").replay()
    with pytest.raises(torch.AcceleratorError):
        captured(work)
    replayable_afterwards()


def _empty_on(stream: torch.cuda.Stream) -> None:
    # Of a new size each time: once a capture has failed, PyTorch may keep what was freed.
    global _taken_bytes
    _taken_bytes += 64 * MIB
    with torch.cuda.stream(stream):
        torch.empty(_taken_bytes, dtype=torch.uint8, device="cuda")


_taken_bytes = 0


def test_a_capture_that_runs_out_of_memory_raises() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        captured(lambda: torch.empty(2**40, device="cuda"))
    replayable_afterwards()


# ---- the object


def test_the_methods_of_a_graph_must_be_called_in_order() -> None:
    graph = torch.cuda.CUDAGraph()
    # PyTorch 2.14 instantiates the graph first.
    too_early = "without a preceding successful capture|must have been called before"
    with pytest.raises(RuntimeError, match=too_early):
        graph.replay()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.pool()
    with torch.cuda.graph(graph):
        torch.ones(1, device="cuda")
    owned = pytest.raises(RuntimeError, match="already owns a captured graph")
    with torch.cuda.stream(torch.cuda.Stream()), owned:
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="Unknown capture error mode"):
        captured(lambda: None, capture_error_mode="strict")
    graph.reset()
    with pytest.raises(RuntimeError, match=too_early):
        graph.replay()


def test_an_empty_graph_warns() -> None:
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        captured(lambda: None)


def test_an_optimizer_that_is_not_capturable_raises() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with pytest.raises(RuntimeError, match="Attempting CUDA graph capture of step"):
        captured(optimizer.step)


@pytest.mark.virtual_only("its nodes have the names of operators")
def test_a_graph_is_written_as_a_dot_file(tmp_path: Path) -> None:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    source = torch.ones(1, device="cuda")
    with torch.cuda.graph(graph):
        source.neg().exp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph.debug_dump(str(tmp_path / "graph.dot"))
    lines = (tmp_path / "graph.dot").read_text().splitlines()
    assert lines == [
        "digraph dot {",
        '  node_0 [label="aten::neg"];',
        '  node_1 [label="aten::exp"];',
        "  node_0 -> node_1;",
        "}",
    ]


def test_only_a_kept_graph_has_raw_handles() -> None:
    graph, kept = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(keep_graph=True)
    with pytest.raises(RuntimeError, match="until capture_end"):
        kept.raw_cuda_graph()
    for each in (graph, kept):
        with torch.cuda.graph(each):
            torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError, match="initialized with keep_graph=true"):
        graph.raw_cuda_graph()
    with pytest.raises(RuntimeError, match="only when keep_graph=true"):
        graph.instantiate()
    assert kept.raw_cuda_graph() != 0
    has_facts = hasattr(graph, "_has_graph_exec")  # in the PyTorch versions that use it
    if has_facts:
        assert (graph._has_graph_exec, kept._has_graph_exec) == (True, False)
    with pytest.raises(RuntimeError, match=r"until instantiate\(\) has been called"):
        kept.raw_cuda_graph_exec()
    for _ in range(2):
        kept.instantiate()
    assert kept.raw_cuda_graph_exec() != graph.raw_cuda_graph_exec() != 0
    if has_facts:
        assert kept._has_graph_exec


def test_a_capture_is_known_on_its_own_device_and_stream_only() -> None:
    found = []

    def work() -> None:
        torch.ones(1, device="cuda")
        found.append(torch.cuda.is_current_stream_capturing())
        with torch.cuda.stream(torch.cuda.default_stream()):
            found.append(torch.cuda.is_current_stream_capturing())
        with torch.cuda.device(0):
            found.append(torch.cuda.is_current_stream_capturing())

    assert not torch.cuda.is_current_stream_capturing()
    graph = captured(work)
    assert found == [True, False, DEVICE == 0]
    assert not torch.cuda.is_current_stream_capturing()
    graph.reset()


def test_a_capture_may_end_in_two_parts() -> None:
    source, results = torch.ones(4, device="cuda"), []
    graph: Any = torch.cuda.CUDAGraph()
    if not hasattr(graph, "capture_end_pre"):
        pytest.skip("this PyTorch's captures end in one part")
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        results.append(source * 3)
        graph.capture_end_pre()
        assert not torch.cuda.is_current_stream_capturing()
        assert not graph._has_graph_exec
        graph.instantiate()
        graph.capture_end_post()
    graph.replay()
    torch.cuda.synchronize()
    assert results[0].tolist() == [3.0] * 4
    assert graph._has_graph_exec
    graph.reset()
    assert not graph._has_graph_exec


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


# ---- time


@pytest.mark.virtual_only("the times are those of a virtual A100")
def test_a_replay_is_one_launch() -> None:
    small = torch.ones(8, device="cuda")

    def work() -> None:
        for _ in range(100):
            small.add_(1)

    graph = captured(work)
    times = []
    for run in (work, graph.replay):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    eager_ms, graphed_ms = times
    assert eager_ms >= 100 * 5e-3  # of the host
    assert eager_ms > 3 * graphed_ms


@pytest.mark.virtual_only("the times are those of a virtual A100")
def test_a_replay_takes_as_long_as_its_longest_stream() -> None:
    small, side = torch.ones(8, device="cuda"), torch.cuda.Stream()

    def work() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(14_100_000)  # 10 ms
            small.add_(1)
        torch.cuda._sleep(28_200_000)  # 20 ms
        torch.cuda.current_stream().wait_stream(side)

    graph = captured(work)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(20, rel=0.01)


def skip_without_conditions() -> None:
    if not hasattr(torch.cuda.CUDAGraph, "begin_capture_to_if_node"):
        pytest.skip("this PyTorch's graphs have no conditional bodies")


def test_a_conditional_body() -> None:
    skip_without_conditions()
    flag, inner = (torch.zeros(1, dtype=torch.bool, device=DEVICE) for _ in range(2))
    total, seen = torch.zeros(2, device=DEVICE), torch.zeros(2, device=DEVICE)

    def work() -> None:
        graph: Any = torch.cuda.CUDAGraph.get_currently_capturing_graph()
        graph.begin_capture_to_if_node(flag)
        total.add_(1)
        graph.begin_capture_to_if_node(inner)
        total.add_(10)
        graph.end_capture_to_conditional_node()
        graph.end_capture_to_conditional_node()
        graph.begin_capture_to_if_node(flag.logical_not())
        total.sub_(1)
        graph.end_capture_to_conditional_node()
        seen.copy_(total)

    graph = captured(work)
    assert total.tolist() == [0, 0]
    for condition, nested, wanted in ((0, 1, -1), (1, 0, 0), (1, 1, 11), (0, 0, 10)):
        flag.fill_(condition)
        inner.fill_(nested)
        graph.replay()
        assert total.tolist() == seen.tolist() == [wanted, wanted]


def test_both_branches_of_a_condition() -> None:
    conditional = pytest.importorskip("torch._higher_order_ops.cudagraph_conditional_nodes")
    flag = torch.zeros((), dtype=torch.bool, device=DEVICE)
    number = torch.ones(3, device=DEVICE)
    results = []

    def work() -> None:
        results[:] = conditional.if_else_node(
            flag, lambda x: (x.sin(),), lambda x: (x + 1,), (number,)
        )

    graph = captured(work)
    for condition in (True, False, True):
        flag.fill_(condition)
        number.add_(1)
        graph.replay()
        assert torch.equal(results[0], number.sin() if condition else number + 1)


def test_invalid_conditions() -> None:
    skip_without_conditions()

    def work() -> None:
        graph: Any = torch.cuda.CUDAGraph.get_currently_capturing_graph()
        with pytest.raises(RuntimeError, match="expected scalar type Bool but found Float"):
            graph.begin_capture_to_if_node(torch.ones(1, device=DEVICE))
        with pytest.raises(RuntimeError, match="only after begin_capture_to_if_node"):
            graph.end_capture_to_conditional_node()

    captured(work)
    idle: Any = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="during a capture"):
        idle.begin_capture_to_if_node(torch.ones(1, dtype=torch.bool, device=DEVICE))
