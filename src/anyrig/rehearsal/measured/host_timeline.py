"""What each thread of the host did: the time of each operator itself, its launches and its waits.

Operators nest. At each moment, the innermost one counts:

::

    in the trace   |====== aten::linear ==============|
                     |== aten::addmm =======|  |sync|
                        |launch|
    intervals      |l|= addmm =|= addmm ====|l.| wait |l|
                               └─ ends here, since the kernel may begin now

Modules and backward nodes enclose operators without taking time themselves.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from ...virtual.record_reading import IntervalKind, RecordedTrack
from .marks import MODULE_MARK, STEP_MARK
from .record_builder import RecordBuilder
from .trace_file import Event, Moment, ProfilerTrace

_ENGINE = "autograd::engine::"
# Calls that return once a device has done its work.
_WAITS = frozenset(
    {
        *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy"),
        *("hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize", "hipMemcpy"),
        *("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"),
    }
)
# Annotations of PyTorch whose own time is that of Python code.
_ANNOTATIONS = ("Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#", "nccl:")


@dataclass(frozen=True)
class Launch:
    """A call of the host that launched work.

    Attributes:
        begin_ns: when the call began.
        interval: the number of the interval that ends with the call.
        operator: the name of the innermost operator around it; None outside operators.
        module: the name of the module; None if unknown.
    """

    begin_ns: int
    interval: int
    operator: str | None
    module: str | None


@dataclass
class _Open:
    """An event that has not ended at the moment that the walk has reached."""

    end_ns: int
    name: str | None  # of its intervals; None if it has none
    operator: str | None
    module: str | None


def main_thread(trace: ProfilerTrace) -> int | None:
    """Return the thread that takes the steps; None if the trace has no step."""
    for thread, events in trace.host.items():
        if any(event.name == STEP_MARK for event in events):
            return thread
    return None


def add_host(
    builder: RecordBuilder, trace: ProfilerTrace, launching: Container[int]
) -> dict[int, Launch]:
    """Add the intervals of all threads of the host; return the launches by correlation.

    `launching` holds the correlations of works.
    """
    launches: dict[int, Launch] = {}
    modules = _modules_of_forwards(trace)
    main = main_thread(trace)
    for thread, events in sorted(trace.host.items(), key=lambda one: one[0] != main):
        in_backward = thread != main and any(one.name.startswith(_ENGINE) for one in events)
        track = RecordedTrack(None, None, in_backward, thread=0 if thread == main else thread)
        walk = _Walk(builder, track, launching, launches)
        for event in events:
            walk.enter(event, modules.get((thread, event.begin_ns)))
        walk.close(None)
    return launches


class _Walk:
    """Goes through the events of a thread in the order of time."""

    def __init__(
        self,
        builder: RecordBuilder,
        track: RecordedTrack,
        launching: Container[int],
        launches: dict[int, Launch],
    ) -> None:
        self._builder, self._track = builder, track
        self._launching, self._launches = launching, launches
        self._open: list[_Open] = []
        self._now = 0  # all before is in the record

    def enter(self, event: Event, module: str | None) -> None:
        """Go on to the begin of an event, in a node of a backward pass of `module`."""
        self.close(event.begin_ns)
        outer = self._open[-1] if self._open else _Open(0, None, None, None)
        if event.is_call:
            if event.name in _WAITS:
                self._add_until(event.begin_ns)
                waiting = outer.operator or event.name
                self._add(event.begin_ns, event.end_ns, waiting, outer.module, IntervalKind.WAIT)
            elif event.correlation in self._launching:
                self._launch(event, outer)
            return
        self._add_until(event.begin_ns)
        if event.name == STEP_MARK:
            for one in self._open:  # what remains of the optimizer's step is the end of the profile
                one.name = None
            return
        name = outer.name
        operator = outer.operator
        if event.name.startswith(MODULE_MARK):
            name, module = None, event.name.removeprefix(MODULE_MARK)
        elif event.category == "cpu_op":
            name = operator = event.name.removeprefix(f"{_ENGINE}evaluate_function: ")
        elif event.name.startswith(_ANNOTATIONS):
            name = operator = event.name
        self._open.append(
            _Open(event.end_ns, name, operator, outer.module if module is None else module)
        )

    def close(self, moment: int | None) -> None:
        """End the events that ended before `moment`, or all."""
        while self._open and (moment is None or self._open[-1].end_ns <= moment):
            self._add_until(self._open[-1].end_ns)
            self._open.pop()

    def _launch(self, call: Event, outer: _Open) -> None:
        if outer.name is None:
            self._add_until(call.begin_ns)
        begin = call.begin_ns if outer.name is None else max(self._now, 0)
        number = self._add(begin, call.end_ns, outer.name or call.name, outer.module)
        self._launches[call.correlation] = Launch(
            call.begin_ns, number, outer.operator, outer.module
        )

    def _add_until(self, moment: int) -> None:
        """Add the time of the innermost event itself until `moment`."""
        if self._open and self._open[-1].name is not None and moment > self._now:
            self._add(self._now, moment, self._open[-1].name, self._open[-1].module)
        self._now = max(self._now, moment)

    def _add(
        self,
        begin_ns: int,
        end_ns: int,
        name: str,
        module: str | None,
        kind: IntervalKind = IntervalKind.HOST,
    ) -> int:
        self._now = max(self._now, end_ns)
        return self._builder.add(self._track, begin_ns, end_ns, kind, name, module=module)


def _modules_of_forwards(trace: ProfilerTrace) -> Mapping[Moment, str]:
    """Return the modules of the nodes of backward passes, by the begin of each node."""
    wanted = set(trace.forward_of.values())
    found: dict[Moment, str] = {}
    for thread, events in trace.host.items():
        _find_modules(thread, events, wanted, found)
    return {node: found[forward] for node, forward in trace.forward_of.items() if forward in found}


def _find_modules(
    thread: int, events: Sequence[Event], wanted: Container[Moment], found: dict[Moment, str]
) -> None:
    running: list[tuple[int, str]] = []
    for event in events:
        while running and running[-1][0] <= event.begin_ns:
            running.pop()
        if event.name.startswith(MODULE_MARK):
            running.append((event.end_ns, event.name.removeprefix(MODULE_MARK)))
        elif running and (thread, event.begin_ns) in wanted:
            found[(thread, event.begin_ns)] = running[-1][1]
