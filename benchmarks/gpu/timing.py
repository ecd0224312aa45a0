"""Milliseconds of work on the current CUDA device, by CUDA events."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

# Calls in a graph: enough to outlast the gaps between kernels, few enough to build fast.
LEAST_MS, MOST_CALLS = 4.0, 200
REPLAYS = 5


def events_ms(work: Callable[[], Any]) -> float:
    """Return the milliseconds between events around `work`."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def kernel_ms(prepare: Callable[[], Callable[[], Any]]) -> float:
    """Return the milliseconds of one call in a CUDA graph, without the host's part.

    The graph repeats the call, so small operands are in the L2 cache.

    Args:
        prepare: creates the operands and returns the call.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call = prepare()
        for _ in range(3):
            call()
        one = events_ms(call)
        calls = max(3, min(MOST_CALLS, round(LEAST_MS / max(one, 1e-3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                call()
        graph.replay()
        return statistics.median(events_ms(graph.replay) for _ in range(REPLAYS)) / calls


def host_us(call: Callable[[], Any], calls: int = 2000) -> float:
    """Return how many microseconds the host takes to launch `call`; its kernels must take less."""
    for _ in range(200):
        call()

    def repeat() -> None:
        for _ in range(calls):
            call()

    return 1e3 * events_ms(repeat) / calls
