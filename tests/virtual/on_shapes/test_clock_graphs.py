"""The time and the work of replays of CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu_rates import COPY_LAUNCH_SECONDS, VALUES, product_gpu_seconds, seconds

from anyrig.virtual import clock, record_reading
from anyrig.virtual.clock_reading import DeviceReading

NODE_SECONDS = VALUES["host.graph_node_seconds"]
SIZE = 4096


def close(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def square() -> torch.Tensor:
    return torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)


def done_by(work: Callable[[], object]) -> DeviceReading:
    """Return what cuda:0 did during `work`, as the difference of two readings."""
    torch.cuda.synchronize()
    before = clock().devices[0]
    work()
    after = clock().devices[0]
    return DeviceReading(
        0,
        after.compute_seconds - before.compute_seconds,
        type(after.kernels)(
            after.kernels.memory - before.kernels.memory,
            after.kernels.products - before.kernels.products,
            after.kernels.convolutions - before.kernels.convolutions,
            after.kernels.attention - before.kernels.attention,
        ),
        after.copy_seconds - before.copy_seconds,
        after.collective_seconds - before.collective_seconds,
        after.flops - before.flops,
        after.memory_bytes - before.memory_bytes,
        (),
    )


def test_a_replay_counts_what_was_captured() -> None:
    x, y = square(), square()

    def work() -> None:
        torch.mm(x, x, out=y)
        y.relu_()

    eager = done_by(work)
    graph = captured(work)
    assert done_by(lambda: None).flops == 0
    replayed = done_by(lambda: [graph.replay() for _ in range(3)])
    assert replayed.flops == 3 * eager.flops == 3 * 2 * SIZE**3
    assert replayed.memory_bytes == close(3 * eager.memory_bytes)
    assert replayed.compute_seconds == close(3 * eager.compute_seconds)
    assert replayed.kernels.products == close(3 * eager.kernels.products)
    assert replayed.kernels.memory == close(3 * eager.kernels.memory)


def test_a_replay_takes_one_launch_and_the_time_of_its_kernels() -> None:
    x, y = square(), square()
    graph = captured(lambda: [torch.mm(x, x, out=y) for _ in range(10)])
    products = 10 * (product_gpu_seconds(SIZE) + NODE_SECONDS)
    assert seconds(graph.replay) == close(COPY_LAUNCH_SECONDS + products)


def test_a_graph_of_small_kernels_takes_the_gpus_time_not_the_hosts() -> None:
    small = torch.empty(8, device="cuda")
    graph = captured(lambda: [small.add_(1) for _ in range(1000)])
    floor = VALUES["memory.kernel_floor_seconds"]
    assert seconds(graph.replay) == close(COPY_LAUNCH_SECONDS + 1000 * (floor + NODE_SECONDS))


def test_replays_on_two_streams_share_the_multiprocessors() -> None:
    x, y = square(), square()
    graph = captured(lambda: [torch.mm(x, x, out=y) for _ in range(10)])
    side = torch.cuda.Stream()

    def replay_twice() -> None:
        graph.replay()
        with torch.cuda.stream(side):
            graph.replay()

    assert seconds(replay_twice) == close(20 * product_gpu_seconds(SIZE))


def test_kernels_of_two_captured_streams_share_the_multiprocessors() -> None:
    x, y, z = square(), square(), square()
    side = torch.cuda.Stream()

    def work() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(10):
                torch.mm(x, x, out=y)
        for _ in range(10):
            torch.mm(x, x, out=z)
        torch.cuda.current_stream().wait_stream(side)

    assert seconds(captured(work).replay) == close(20 * product_gpu_seconds(SIZE))


def test_a_captured_copy_counts_as_a_copy() -> None:
    on_host = torch.empty(2**26, dtype=torch.uint8, pin_memory=True)
    on_gpu = torch.empty(2**26, dtype=torch.uint8, device="cuda")

    def work() -> None:
        on_gpu.copy_(on_host, non_blocking=True)

    eager = done_by(work)
    graph = captured(work)
    replayed = done_by(graph.replay)
    assert replayed.copy_seconds == close(eager.copy_seconds)
    assert replayed.compute_seconds == 0


def test_the_record_shows_a_replay_as_one_kernel() -> None:
    x, y = square(), square()
    graph = captured(lambda: [torch.mm(x, x, out=y) for _ in range(10)])
    record_reading.begin_record([], torch.nn.Module.__call__.__code__, lambda *_: "")
    graph.replay()
    torch.cuda.synchronize()
    record_reading.end_record()
    record = record_reading.read_record()
    found = record.intervals
    (at,) = (i for i, kind in enumerate(found.kind) if kind == record_reading.IntervalKind.KERNEL)
    assert record.names[found.name[at]] == "CUDA graph"
    assert found.end[at] - found.begin[at] == close(10 * (product_gpu_seconds(SIZE) + NODE_SECONDS))
    assert found.bytes[at] == 10 * 3 * x.nbytes
