"""The time of a program's step, and the allocations of one."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from .programs import PROGRAMS
from .timing import events_ms

WARM_STEPS, TIMED_STEPS = 3, 5
SHOWN_KERNELS = 60


def measure_program(
    name: str, compute_seconds: Callable[[], float] | None = None
) -> dict[str, Any]:
    """Return what a step of the program takes.

    Args:
        name: a key of `PROGRAMS`.
        compute_seconds: reads the time that kernels took since the start, where a clock knows it;
            otherwise the profiler measures them.

    Returns:
        step_ms: between events, the host not waited for within the step.
        peak_allocated_bytes, peak_reserved_bytes: from the creation of the model on.
        events: each allocation and release of a step, and of segments: action and bytes.
        kernel_ms: all kernels of a step; None if the profiler reports none.
        kernels: the names, milliseconds and calls of those that take longest, by the profiler.
    """
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    torch.cuda.reset_peak_memory_stats()
    step = PROGRAMS[name]()
    for _ in range(WARM_STEPS):
        step()
    step_ms = statistics.median(events_ms(step) for _ in range(TIMED_STEPS))
    found = {
        "name": name,
        "step_ms": step_ms,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "events": _events_of(step),
        **(_kernels_of(step) if compute_seconds is None else _clocked(step, compute_seconds)),
    }
    del step
    gc.collect()
    torch.cuda.empty_cache()
    return found


def _events_of(step: Any) -> list[tuple[str, int]]:
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    step()
    device = torch.cuda.current_device()
    entries = torch.cuda.memory._snapshot()["device_traces"][device]
    torch.cuda.memory._record_memory_history(None)
    kept = {"alloc": "+", "free_requested": "-", "segment_alloc": "S", "segment_free": "s"}
    return [(kept[e["action"]], e["size"]) for e in entries if e["action"] in kept]


def _clocked(step: Any, compute_seconds: Callable[[], float]) -> dict[str, Any]:
    before = compute_seconds()
    step()
    torch.cuda.synchronize()
    return {"kernel_ms": 1000 * (compute_seconds() - before), "kernels": []}


def _kernels_of(step: Any) -> dict[str, Any]:
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            taken = kernels.setdefault(event.name, [0.0, 0])
            taken[0] += event.time_range.elapsed_us() / 1000
            taken[1] += 1
    longest = sorted(kernels.items(), key=lambda item: -item[1][0])[:SHOWN_KERNELS]
    return {
        "kernel_ms": sum(ms for ms, _ in kernels.values()) if kernels else None,
        "kernels": [(name, round(ms, 4), calls) for name, (ms, calls) in longest],
    }
