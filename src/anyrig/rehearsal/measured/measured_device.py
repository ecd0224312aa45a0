"""`MeasuredDevice`: a device that a process used, by PyTorch's profiler and allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..facts import DeviceFacts, MemoryFacts, PeakMemory
from ..occupation import Occupation


@dataclass(frozen=True)
class MeasuredDevice:
    """A device that a process used.

    Attributes:
        index: the CUDA index in the process.
        gpu: the name that the driver gives the device.
        capacity_bytes: the memory of the device.
        most_reserved_bytes: the most that PyTorch's allocator took, in the whole run.
        most_allocated_bytes: the most that it handed out, maybe at another moment.
        has_works: whether the profiler saw work on the device.
        seconds: the moments of the curve of memory, in the profiled steps only.
        allocated_bytes: what the allocator had handed out at each moment.
        reserved_bytes: what it had taken at each moment.
    """

    index: int
    gpu: str
    capacity_bytes: int
    most_reserved_bytes: int
    most_allocated_bytes: int
    has_works: bool
    seconds: tuple[float, ...] = ()
    allocated_bytes: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MeasuredDevice:
        """Return the device that `dataclasses.asdict` and JSON turned into `values`."""
        plain: dict[str, Any] = {
            field.name: tuple(one) if isinstance(one := values[field.name], list) else one
            for field in fields(cls)
        }
        return cls(**plain)

    def facts(self, rank: int, occupation: Occupation) -> DeviceFacts:
        """Return the facts of the device of a rank."""
        has_works = self.has_works
        return DeviceFacts(
            index=self.index,
            rank=rank,
            gpu=self.gpu,
            capacity_bytes=self.capacity_bytes,
            peak=PeakMemory(
                total_bytes=self.most_reserved_bytes,
                tensor_bytes=self.most_allocated_bytes,
                workspace_bytes=None,
                context_bytes=None,
                collective_bytes=None,
                cached_bytes=None,
                headroom_bytes=None,
            ),
            busy_share=occupation.busy if has_works else None,
            waiting_share=occupation.waiting if has_works else None,
            idle_share=occupation.idle if has_works else None,
        )

    def memory_facts(self, rank: int) -> MemoryFacts:
        """Return the memory of the device of a rank over time."""
        pairs = zip(self.reserved_bytes, self.allocated_bytes, strict=True)
        return MemoryFacts(
            device=self.index,
            rank=rank,
            seconds=self.seconds,
            tensor_bytes=self.allocated_bytes,
            workspace_bytes=None,
            cached_bytes=tuple(max(0, reserved - allocated) for reserved, allocated in pairs),
            context_bytes=None,
        )
