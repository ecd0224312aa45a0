"""What CUDA's caching allocator records of its allocations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .event import Action, Event

# Actions of the allocator's history, by our names; the others move no bytes.
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
    """The recording of all CUDA devices of this process, begun by `begin_cuda_history`.

    Attributes:
        before: the segments of all devices when the recording began, as in
            `torch.cuda.memory_snapshot`.
        offsets: how many entries each device's trace had then.
        started_here: whether nothing recorded the allocator's history before.
    """

    before: Sequence[Mapping[str, Any]]
    offsets: Sequence[int]
    started_here: bool

    def read(self) -> Snapshot:
        """Return what the allocator has recorded until now, in its own form."""
        snapshot: Snapshot = torch.cuda.memory._snapshot()
        return snapshot

    def restart(self) -> CudaHistory:
        """Return the recording that goes on from here."""
        if self.started_here:
            _record()
        return _begin(self.started_here)

    def end(self) -> None:
        """Record no more, unless the program itself had started it."""
        if self.started_here:
            torch.cuda.memory._record_memory_history(enabled=None)


def begin_cuda_history() -> CudaHistory | None:
    """Have the allocator record every event; None if there is no CUDA device, real or virtual.

    The functions are PyTorch's own, documented under "Understanding CUDA Memory Usage", though
    their names begin with an underscore: tests/memory/test_torch_names.py holds on to them.
    """
    if not torch.cuda.is_available():
        return None
    torch.cuda.init()  # type: ignore[no-untyped-call]
    already: bool = torch._C._cuda_isHistoryEnabled()
    if not already:
        _record()
    return _begin(not already)


def _record() -> None:
    # No stacks: the recorder knows the lines, of backward passes too.
    torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)


def _begin(started_here: bool) -> CudaHistory:
    snapshot = torch.cuda.memory._snapshot()
    offsets = [len(trace) for trace in snapshot["device_traces"]]
    return CudaHistory(snapshot["segments"], offsets, started_here)


def label_cuda_allocations() -> Callable[[int, torch.device | None], None]:
    """Return a function that labels what one device's allocator records from now on.

    The function takes a number and a device; None stands for the current device.
    """
    if not torch.cuda.is_available():
        return lambda number, device: None
    label: Callable[[str], None] = torch._C._cuda_setMemoryMetadata
    if torch.cuda.device_count() == 1:
        return lambda number, device: label(str(number))

    def label_on_device(number: int, device: torch.device | None) -> None:
        if device is None or device.type != "cuda":
            label(str(number))
        else:
            with torch.cuda.device(device):
                label(str(number))

    return label_on_device


def events_of(history: CudaHistory, snapshot: Snapshot, device: int) -> list[Event]:
    """Return the events of a device since the recording began, in order."""
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
