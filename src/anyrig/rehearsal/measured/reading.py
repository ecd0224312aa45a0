"""`record_of_window`: what was profiled in this process, as the record of the process."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ...virtual.torch_import import without_collections
from ..process_record import ProcessRecord
from ..step_ends import StepEnd
from .adapter import TracedSteps, record_of_trace
from .device_works import Group
from .measured_device import MeasuredDevice
from .memory_events import MemoryCurve, read_curves
from .profiled_window import ProfiledWindow
from .trace_file import ProfilerTrace, read_trace

_NO_TRACE = ProfilerTrace({}, (), (), {})


def record_of_window(
    window: ProfiledWindow, folder: Path, origin_ns: int, rank: int
) -> ProcessRecord:
    """Return what `window`, which must have stopped, has profiled in this process.

    Args:
        window: what was profiled.
        folder: where the trace is written for a moment.
        origin_ns: the moment from which times count, in nanoseconds since 1970.
        rank: the rank of this process.
    """
    path = folder / f"{rank}-{os.getpid()}.pt.trace.json"
    problems = window.problems
    trace = _NO_TRACE
    if window.export(path):
        try:
            with without_collections():  # a trace is many objects
                trace = read_trace(path, origin_ns)
        except (ValueError, OSError) as error:
            problems.append(f"the trace of PyTorch's profiler could not be read: {error}")
        path.unlink(missing_ok=True)
    group = Group(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    steps = record_of_trace(trace, group)
    return ProcessRecord(
        rank,
        steps.record,
        steps.done_seconds[0] if steps.done_seconds else 0.0,
        steps.host_seconds[0] if steps.host_seconds else 0.0,
        _ends_of(steps, window.loaded),
        tuple(_devices_of(trace)),
        steps_taken=window.steps_taken,
        problems=tuple(problems),
    )


def _ends_of(steps: TracedSteps, loaded: list[tuple[int | None, float]]) -> tuple[StepEnd, ...]:
    moments = zip(steps.done_seconds[1:], steps.host_seconds[1:], strict=True)
    return tuple(
        StepEnd(done, host, *batch) for (done, host), batch in zip(moments, loaded, strict=False)
    )


def _devices_of(trace: ProfilerTrace) -> list[MeasuredDevice]:
    """Return the GPUs that this process used."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    curves = read_curves(trace.memory)
    working = {work.place[0] for work in trace.works}
    devices = []
    for index in range(torch.cuda.device_count()):
        reserved = torch.cuda.max_memory_reserved(index)
        if reserved == 0 and index not in working:
            continue
        properties = torch.cuda.get_device_properties(index)
        curve = curves.get(index, MemoryCurve())
        devices.append(
            MeasuredDevice(
                index,
                properties.name,
                properties.total_memory,
                reserved,
                torch.cuda.max_memory_allocated(index),
                index in working,
                tuple(curve.seconds),
                tuple(curve.allocated_bytes),
                tuple(curve.reserved_bytes),
            )
        )
    return devices
