"""CUDA graphs: captures, and what replays compute, draw and take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captured_graphs import REGISTERS_GENERATORS, captured
from torch.utils._python_dispatch import TorchDispatchMode

# A capture that fails before its first kernel also leaves an empty graph.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
    pytest.mark.usefixtures("graph_device"),
]

DEVICE = 5  # used only by the tests of graphs


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
