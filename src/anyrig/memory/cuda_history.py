"""The history that CUDA's caching allocator records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .event import Action, Event

# The allocator's actions and our names for them. Other actions neither allocate nor free memory.
_ACTIONS: Mapping[str, Action] = {
    "alloc": "alloc",
    "free_requested": "free",
    "free_completed": "reuse",
    "segment_alloc": "segment_alloc",
    "segment_map": "segment_alloc",
    "segment_free": "segment_free",
    "segment_unmap": "segment_free",
    "oom": "refuse",
}

Snapshot = dict[str, Any]


@dataclass(frozen=True)
class CudaHistory:
    """A recording of all CUDA devices of this process, from `begin_cuda_history`.

    Attributes:
        before: the segments of all devices when the recording began, as in
            `torch.cuda.memory_snapshot`.
        offsets: the length of each device's trace when the recording began.
        started_here: whether this recording enabled the allocator's history.
    """

    before: Sequence[Mapping[str, Any]]
    offsets: Sequence[int]
    started_here: bool

    def read(self) -> Snapshot:
        """Return the allocator's snapshot, with the history until now."""
        snapshot: Snapshot = torch.cuda.memory._snapshot()
        return snapshot

    def restart(self) -> CudaHistory:
        """Return a new recording that begins now."""
        if self.started_here:
            _record()
        return _begin(self.started_here)

    def end(self) -> None:
        """Disable the allocator's history, unless the program itself had enabled it."""
        if self.started_here:
            torch.cuda.memory._record_memory_history(enabled=None)


def begin_cuda_history() -> CudaHistory:
    """Make the allocator record every event. PyTorch must have initialized CUDA.

    PyTorch documents these functions under "Understanding CUDA Memory Usage", although their names
    are private. tests/memory/test_torch_names.py fails if a name changes.
    """
    already: bool = torch._C._cuda_isHistoryEnabled()
    if not already:
        _record()
    return _begin(not already)


def _record() -> None:
    # Without stacks: the recorder knows the lines, even in backward passes.
    torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)


def _begin(started_here: bool) -> CudaHistory:
    snapshot = torch.cuda.memory._snapshot()
    offsets = [len(trace) for trace in snapshot["device_traces"]]
    return CudaHistory(snapshot["segments"], offsets, started_here)


def label_cuda_allocations() -> Callable[[int], None]:
    """Return a function that labels the following entries of the calling thread with a number.

    The label belongs to the thread and applies to all devices (`user_metadata` in
    c10/cuda/CUDACachingAllocator.cpp). PyTorch must have initialized CUDA.
    """
    label: Callable[[str], None] = torch._C._cuda_setMemoryMetadata
    return lambda number: label(str(number))


def events_of(history: CudaHistory, snapshot: Snapshot, device: int) -> list[Event]:
    """Return the events of the device with index `device` since the recording began, in order."""
    events = []
    for entry in snapshot["device_traces"][device][history.offsets[device] :]:
        action = _ACTIONS.get(entry["action"])
        if action is not None:
            label = entry.get("user_metadata", "")
            operator = int(label) if label.isdecimal() else None
            seconds = entry["time_us"] / 1e6
            address = entry["device_free" if action == "refuse" else "addr"]
            events.append(Event(action, address, entry["size"], operator, seconds))
    return events
