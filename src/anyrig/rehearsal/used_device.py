"""`UsedDevice`: a virtual device that a process used, and its facts."""

from __future__ import annotations

from dataclasses import dataclass

from ..virtual.record_reading import MemoryCurve
from .facts import DeviceFacts, MemoryFacts, PeakMemory
from .memory_bound import most_bytes
from .occupation import Occupation


@dataclass(frozen=True)
class UsedDevice:
    """A virtual device that a process used.

    Attributes:
        index: the CUDA index in the process.
        gpu: the name of the GPU in a rig.
        capacity_bytes: the memory that a program can use.
        memory: its memory over time.
    """

    index: int
    gpu: str
    capacity_bytes: int
    memory: MemoryCurve

    def facts(self, rank: int, occupation: Occupation) -> DeviceFacts:
        """Return the facts of the device of a rank."""
        peak = self.memory.peak
        outside = peak.context_bytes + peak.mapped_bytes + peak.collective_bytes
        return DeviceFacts(
            index=self.index,
            rank=rank,
            gpu=self.gpu,
            capacity_bytes=self.capacity_bytes,
            peak=PeakMemory(
                total_bytes=peak.total_bytes,
                tensor_bytes=peak.tensor_bytes,
                workspace_bytes=peak.workspace_bytes,
                context_bytes=peak.context_bytes + peak.mapped_bytes,
                collective_bytes=peak.collective_bytes,
                cached_bytes=peak.cached_bytes,
                headroom_bytes=self.capacity_bytes - peak.total_bytes,
                most_bytes=most_bytes(peak.total_bytes, outside),
            ),
            busy_share=occupation.busy,
            waiting_share=occupation.waiting,
            idle_share=occupation.idle,
        )

    def memory_facts(self, rank: int) -> MemoryFacts:
        """Return the memory of the device of a rank over time."""
        samples = self.memory.samples
        return MemoryFacts(
            device=self.index,
            rank=rank,
            seconds=tuple(one.seconds for one in samples),
            tensor_bytes=tuple(one.tensor_bytes for one in samples),
            workspace_bytes=tuple(one.workspace_bytes for one in samples),
            cached_bytes=tuple(one.cached_bytes for one in samples),
            context_bytes=tuple(
                one.context_bytes + one.collective_bytes + one.mapped_bytes for one in samples
            ),
            kinds_at_peak=self.memory.kinds,
        )
