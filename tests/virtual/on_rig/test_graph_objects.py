"""`torch.cuda.CUDAGraph` as an object: its methods, its handles, and conditional bodies."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from captured_graphs import captured

# A capture that fails before its first kernel also leaves an empty graph.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
    pytest.mark.usefixtures("graph_device"),
]

DEVICE = 5  # used only by the tests of graphs


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
