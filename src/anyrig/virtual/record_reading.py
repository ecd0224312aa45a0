"""The record of the virtual clock: what each stream and the host did when, and memory over time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from types import CodeType
from typing import Any

from .build import load_extension

# The kinds of `PeakKinds` (``csrc/memory/peak_kinds.h``).
_KINDS = ("parameters", "gradients", "optimizer", "activations")


class IntervalKind(IntEnum):
    """What happened in an interval: ``IntervalKind`` of ``csrc/time/record.h``."""

    KERNEL = 0
    COPY = 1
    COLLECTIVE = 2
    WAIT = 3
    HOST = 4


class Cause(IntEnum):
    """What determined when an interval began: ``Cause`` of ``csrc/time/record.h``."""

    NONE = 0
    STREAM = 1
    LAUNCH = 2
    MOMENT = 3


@dataclass(frozen=True)
class RecordedTrack:
    """A stream of a device, or a thread of the host.

    Attributes:
        device: the CUDA index of the device; None for the host.
        stream: the id of the stream; None for the host.
        in_backward: whether this is a thread of the host that works for backward passes.
        rank: the rank of the process.
        thread: distinguishes the threads of a host; 0 for the one that takes the steps.
    """

    device: int | None
    stream: int | None
    in_backward: bool
    rank: int = 0
    thread: int = 0


@dataclass(frozen=True)
class RecordedIntervals:
    """The intervals of a record, as columns of equal length in the order of their recording.

    Attributes:
        complete_from: the moment from which on no interval is missing, in seconds. The oldest
            intervals of a long program are dropped.
        begin: when the interval began, in seconds.
        end: when it ended, in seconds.
        bytes: the bytes that a kernel read and wrote, or that were copied or communicated; -1 if
            unknown.
        launch: the index of the host's interval that launched the work; -1 if not recorded.
        flow: a number that both ends of a copy, or all ranks of a collective, share; -1 for others.
        track: the index of the track.
        name: the index of the operator's name.
        nodes: the number of nodes on which the ranks of a collective are; 0 for other work.
        kind: an `IntervalKind`.
        cause: a `Cause`.
        line: the index of the program's line; -1 if unknown.
        module: the index of the module; -1 if unknown or outside modules.
    """

    complete_from: float
    begin: array[float]
    end: array[float]
    bytes: array[float]
    launch: array[int]
    flow: array[int]
    track: array[int]
    name: array[int]
    nodes: array[int]
    kind: array[int]
    cause: array[int]
    line: array[int]
    module: array[int]

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True)
class Record:
    """The record of this process until now.

    Attributes:
        intervals: what happened.
        tracks: the streams, and the threads of the host.
        names: the names of operators.
        lines: the lines of the program, as (file, number).
        modules: the names of modules.
    """

    intervals: RecordedIntervals
    tracks: tuple[RecordedTrack, ...]
    names: tuple[str, ...]
    lines: tuple[tuple[str, int], ...]
    modules: tuple[str, ...]


@dataclass(frozen=True)
class MemorySample:
    """The memory of a device at one moment, in bytes.

    Attributes:
        seconds: the virtual time of the host's last launch.
        tensor_bytes: handed out by the caching allocator, without workspaces.
        workspace_bytes: what kernels allocated for themselves.
        cached_bytes: held by the caching allocator and not handed out.
        context_bytes: the CUDA context.
        collective_bytes: NCCL's buffers.
        mapped_bytes: mapped by the program itself.
    """

    seconds: float
    tensor_bytes: int
    workspace_bytes: int
    cached_bytes: int
    context_bytes: int
    collective_bytes: int
    mapped_bytes: int

    @property
    def total_bytes(self) -> int:
        """The bytes that this process holds on the device."""
        return (
            self.tensor_bytes
            + self.workspace_bytes
            + self.cached_bytes
            + self.context_bytes
            + self.collective_bytes
            + self.mapped_bytes
        )


@dataclass(frozen=True)
class MemoryCurve:
    """The memory of a device over time.

    Attributes:
        peak: the sample with the largest total.
        samples: samples in order of time; if there are too many, the largest ones are kept.
        kinds: the bytes of the tensors at the peak by kind, which add up to the peak's
            `tensor_bytes`; None if no step has ended since the peak.
    """

    peak: MemorySample
    samples: tuple[MemorySample, ...]
    kinds: dict[str, int] | None = None


def begin_record(
    libraries: Iterable[str], module_call: CodeType, name_module: Callable[[Any, Any], str]
) -> None:
    """Begin to record what this process does on the virtual GPUs.

    Args:
        libraries: prefixes of the names of files that are not part of the program.
        module_call: the code of `torch.nn.Module.__call__`, by which calls of modules are
            recognised.
        name_module: a function from (outermost module, module) to the module's name.
    """
    load_extension().begin_record(list(libraries), module_call, name_module)


def end_record() -> None:
    """Record nothing from now on. What was recorded stays."""
    load_extension().end_record()


def done_seconds() -> float:
    """Return when the host and all work launched so far are done, in seconds of virtual time."""
    return float(load_extension().done_seconds())


def host_seconds() -> float:
    """Return the time that the host has reached, in seconds of virtual time."""
    return float(load_extension().host_seconds())


def forget_nodes() -> None:
    """Forget which lines created the nodes of graphs, because a step has ended."""
    load_extension().forget_nodes()


def read_record() -> Record:
    """Return the record of this process until now."""
    found = load_extension().read_record()
    columns = {
        name: array("d" if name in ("begin", "end", "bytes") else "q", column)
        for name, column in found["intervals"].items()
    }
    first = found["first"]
    if first > 0:
        columns["launch"] = array("q", [max(-1, launch - first) for launch in columns["launch"]])
    # An interval that ran in parallel to the first one may be missing.
    complete_from = columns["end"][0] if found["dropped_any"] else 0.0
    return Record(
        RecordedIntervals(complete_from, **columns),
        tuple(_track_of(*track) for track in found["tracks"]),
        tuple(found["names"]),
        tuple(map(tuple, found["lines"])),
        tuple(found["modules"]),
    )


def read_memory_curve(device: int) -> MemoryCurve | None:
    """Return the memory of the device with this CUDA index; None if it was not used."""
    found = load_extension().read_memory_curve(device)
    if found is None:
        return None
    peak, samples, kinds = found
    return MemoryCurve(
        MemorySample(*peak),
        tuple(MemorySample(*sample) for sample in samples),
        None if kinds is None else _kinds_of(MemorySample(*peak), kinds),
    )


def _kinds_of(peak: MemorySample, found: tuple[int, ...]) -> dict[str, int] | None:
    """Return the bytes of tensors by kind: `found`, and the rest as ``other``.

    Return None if `found` exceeds the peak, for example because several threads allocated at that
    moment.
    """
    kinds = dict(zip(_KINDS, found, strict=True))
    other = peak.tensor_bytes - sum(found)
    return None if other < 0 else {**kinds, "other": other}


def _track_of(device: int, stream: int, in_backward: bool) -> RecordedTrack:
    if device < 0:
        return RecordedTrack(None, None, in_backward)
    return RecordedTrack(device, stream, in_backward)
