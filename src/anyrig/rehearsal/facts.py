"""`Facts`: what a rehearsal found, as data. The summary, the page and the trace are drawn from it.

Times are in seconds since the program started, unless a name says otherwise: of virtual time, or of
real time if they were measured (`Facts.measurement`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from ..virtual.clock_settings import ClockSettings
from .assumed_ranks import AssumedRanks
from .fault_facts import FaultFacts
from .measurement import Measurement

FORMAT, VERSION = "anyrig-rehearsal", 1

# The kinds of intervals and of pieces of a critical path.
KERNEL, COPY, COLLECTIVE, WAIT, HOST = "kernel", "copy", "collective", "wait", "host"

# The kind of a `ProgramError` for a rank that this signal ended.
KILLED_RANK = "SIGKILL"


@dataclass(frozen=True)
class ProgramError:
    """The error that ended the program.

    Attributes:
        kind: the name of the exception's class; `KILLED_RANK` if a rank was killed.
        text: its message; for a `SystemExit`, the call, such as ``sys.exit(1)``.
        line: the innermost line of the program in the traceback, such as ``train.py:31``.
    """

    kind: str
    text: str
    line: str | None


@dataclass(frozen=True)
class PeakMemory:
    """The memory of a device when most of it was in use, in bytes; None if it was not measured.

    Attributes:
        total_bytes: all that the rank held; where measured, all that PyTorch's allocator took.
        tensor_bytes: tensors.
        workspace_bytes: what kernels allocated for themselves.
        context_bytes: the CUDA context.
        collective_bytes: NCCL's buffers.
        cached_bytes: free memory that PyTorch's allocator holds.
        headroom_bytes: what was left of the device's memory.
        most_bytes: the most that a rank takes on a real GPU, with what other fragmentation,
            optional workspaces and the driver may add; None if `total_bytes` was measured.
    """

    total_bytes: int | None
    tensor_bytes: int | None
    workspace_bytes: int | None
    context_bytes: int | None
    collective_bytes: int | None
    cached_bytes: int | None
    headroom_bytes: int | None
    most_bytes: int | None = None


@dataclass(frozen=True)
class DeviceFacts:
    """One device that a rank used.

    Attributes:
        index: the CUDA index in the rank.
        rank: the rank; 0 in a program of one process.
        gpu: the name of the GPU in a rig, such as ``A100-80GB``.
        capacity_bytes: the memory that a program can use.
        peak: its memory when most of it was in use.
        busy_share: the part of the typical steps in which a kernel ran.
        waiting_share: the part in which no kernel ran, but work had been launched: copies,
            collectives, and work that waited for them or for another device.
        idle_share: the rest, in which nothing was launched.

    The shares are None if they were not measured.
    """

    index: int
    rank: int
    gpu: str
    capacity_bytes: int
    peak: PeakMemory
    busy_share: float | None
    waiting_share: float | None
    idle_share: float | None


@dataclass(frozen=True)
class PathPiece:
    """A piece of a critical path. Numbers are indexes; None means unknown.

    Attributes:
        kind: `KERNEL`, `COPY`, `COLLECTIVE`, `HOST`, or `WAIT`: for another rank or process.
        seconds: how long it took.
        track: the track, in `Facts.tracks`.
        name: the operator, in `Facts.texts`.
        module: the module, in `Facts.texts`.
        line: the line of the program, in `Facts.texts`.
    """

    kind: str
    seconds: float
    track: int | None
    name: int | None
    module: int | None
    line: int | None


@dataclass(frozen=True)
class StepFacts:
    """One training step: what ran up to the end of a call of `Optimizer.step`.

    Attributes:
        number: counted from 1.
        is_first: whether it is one of the first steps, which differ in time.
        begin_seconds: the end of the previous step; 0 for the first.
        end_seconds: when all work was done that had been launched when the step ended.
        samples: the number of samples in its batches; None if unknown.
        waits: how often the host waited for a device.
        loader_wall_seconds: how long the program waited for its data loader on this machine, by the
            wall clock. It is not part of the virtual time.
        path: the critical path in the order of time, whose seconds add up to the step's; empty if
            the record no longer reaches back to the step.
    """

    number: int
    is_first: bool
    begin_seconds: float
    end_seconds: float
    samples: int | None
    waits: int
    loader_wall_seconds: float
    path: tuple[PathPiece, ...]

    @property
    def seconds(self) -> float:
        """How long the step took."""
        return self.end_seconds - self.begin_seconds


@dataclass(frozen=True)
class TypicalStep:
    """The median of similar steps: after the first ones, without those that evaluate or save.

    Attributes:
        seconds: the median of their times.
        samples_per_second: the median of their rates; None if the samples are unknown.
        of_steps: the numbers of those steps, which follow each other.
    """

    seconds: float
    samples_per_second: float | None
    of_steps: tuple[int, ...]


@dataclass(frozen=True)
class StepInterval:
    """The interval that contains nine of ten typical steps of this kind on real GPUs.

    Attributes:
        low_seconds: the lower end; None if it is not known how far the time may be off.
        high_seconds: the upper end; None if it is not known.
        programs: how many measured programs this comes from. No fit used them.
        reason: which programs these are, or why nothing is known.
        apart: the factor up to which the errors of nine of ten programs differed between two GPUs;
            None if it is not known.
    """

    low_seconds: float | None
    high_seconds: float | None
    programs: int
    reason: str
    apart: float | None


@dataclass(frozen=True)
class CollectiveTimes:
    """The collectives of a typical step, on one device of each rank: means, in seconds.

    Attributes:
        in_node_seconds: the time of collectives whose ranks are all on one node.
        across_nodes_seconds: the time of collectives whose ranks are on several nodes.
        exposed_seconds: the part of the step in which a collective runs and no kernel does.
    """

    in_node_seconds: float
    across_nodes_seconds: float
    exposed_seconds: float


@dataclass(frozen=True)
class Track:
    """A stream of a device, or a thread of a rank's host.

    Attributes:
        title: what to call it.
        rank: the rank.
        device: the CUDA index; None for the host.
        stream: the id of the stream; None for the host.
    """

    title: str
    rank: int
    device: int | None
    stream: int | None


@dataclass(frozen=True)
class Intervals:
    """What happened when: columns of equal length, in order of `begin_seconds`.

    Attributes:
        track: the index of its track in `Facts.tracks`.
        begin_seconds: when it began.
        seconds: how long it took.
        kind: the index of its kind in `Facts.texts`.
        name: the index of the operator in `Facts.texts`.
        module: the index of the module in `Facts.texts`; -1 if unknown.
        line: the index of the line of the program in `Facts.texts`; -1 if unknown.
        bytes: the bytes that were read and written, copied or communicated; -1 if unknown.
        flow: a number that both ends of a copy, or all ranks of a collective, share; -1 for others.
    """

    track: Sequence[int] = ()
    begin_seconds: Sequence[float] = ()
    seconds: Sequence[float] = ()
    kind: Sequence[int] = ()
    name: Sequence[int] = ()
    module: Sequence[int] = ()
    line: Sequence[int] = ()
    bytes: Sequence[int] = ()
    flow: Sequence[int] = ()


@dataclass(frozen=True)
class MemoryFacts:
    """The memory of a device over time: columns of equal length.

    Attributes:
        device: the CUDA index in the rank.
        rank: the rank.
        seconds: the virtual time.
        tensor_bytes: tensors.
        workspace_bytes: what kernels allocated for themselves; None if not measured.
        cached_bytes: free memory that PyTorch's allocator holds.
        context_bytes: the CUDA context, NCCL's buffers and what the program mapped itself; None if
            not measured.
        kinds_at_peak: the bytes of the tensors at the peak by kind: ``parameters``, ``gradients``,
            ``optimizer`` (its state), ``activations`` (what a forward pass made and what was freed
            before the step ended) and ``other``; None if no step has ended since the peak.
    """

    device: int
    rank: int
    seconds: tuple[float, ...]
    tensor_bytes: tuple[int, ...]
    workspace_bytes: tuple[int, ...] | None
    cached_bytes: tuple[int, ...]
    context_bytes: tuple[int, ...] | None
    kinds_at_peak: dict[str, int] | None = None


@dataclass(frozen=True)
class Finding:
    """Something that costs time or memory, and what to do about it.

    Attributes:
        code: the code of the finding, such as ``R05``.
        title: the finding in a few words.
        line: the line that it concerns, such as ``train.py:31``; None if it concerns no particular
            line.
        saved_seconds: what the remedy saves in a typical step; None if unknown.
        saved_bytes: what the remedy saves at the peak; None if unknown.
        text: what was found.
        remedy: what to do.
        is_estimate: whether `saved_seconds` is only about what the remedy saves.
    """

    code: str
    title: str
    line: str | None
    saved_seconds: float | None
    saved_bytes: int | None
    text: str
    remedy: str
    is_estimate: bool = False


@dataclass(frozen=True)
class Facts:
    """Everything that a rehearsal found.

    Attributes:
        program: the name of the program.
        arguments: its arguments.
        rig: the virtual rig.
        shape_only: whether nothing was computed.
        assume_values: whether the program read a constant in place of each value not computed.
        torch: the version of PyTorch.
        anyrig: the version of anyrig.
        status: the program's exit status.
        error: the error that ended it.
        devices: the devices that were used.
        unused_devices: the CUDA indices of the GPUs that a program of one process could use and did
            not.
        steps: the steps in order.
        typical_step: the typical step; None without steps.
        step_interval: the interval of its time on real GPUs; None without steps or GPUs, and
            where steps were measured.
        tracks: the streams and the threads of hosts.
        texts: the names that other facts refer to by index.
        intervals: what happened when.
        memory: the memory of each device over time.
        findings: what costs time or memory.
        fault: what happened after an injected failure; None without one.
        collectives: how long collectives take; None without steps or collectives.
        assumed_ranks: the ranks that rank 0 stands for; None if every rank ran.
        measurement: what was measured and what was not; None in a rehearsal, which predicts.
        clock: what the user said about the clock.
    """

    program: str
    arguments: tuple[str, ...]
    rig: str
    shape_only: bool
    torch: str
    anyrig: str
    status: int = 0
    error: ProgramError | None = None
    devices: tuple[DeviceFacts, ...] = ()
    steps: tuple[StepFacts, ...] = ()
    typical_step: TypicalStep | None = None
    step_interval: StepInterval | None = None
    tracks: tuple[Track, ...] = ()
    texts: tuple[str, ...] = ()
    intervals: Intervals = Intervals()
    memory: tuple[MemoryFacts, ...] = ()
    findings: tuple[Finding, ...] = ()
    fault: FaultFacts | None = None
    collectives: CollectiveTimes | None = None
    assumed_ranks: AssumedRanks | None = None
    measurement: Measurement | None = None
    clock: ClockSettings = field(default_factory=ClockSettings)
    unused_devices: tuple[int, ...] = ()
    assume_values: bool = False

    def peak_bytes(self, device: int, rank: int = 0) -> int:
        """Return the most memory that a rank held on a device; 0 if the rank did not use it."""
        for one in self.devices:
            if (one.index, one.rank) == (device, rank):
                return one.peak.total_bytes or 0
        return 0

    def as_json(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {"format": FORMAT, "version": VERSION, **_plain(self)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value
