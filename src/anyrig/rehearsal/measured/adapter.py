"""`record_of_trace`: the trace of PyTorch's profiler as the record of a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...virtual.record_reading import Record
from .device_works import Group, add_works
from .host_timeline import Launch, add_host, main_thread
from .marks import STEP_MARK
from .record_builder import RecordBuilder
from .trace_file import Event, ProfilerTrace


@dataclass(frozen=True)
class TracedSteps:
    """The steps of a trace.

    Attributes:
        record: what happened.
        host_seconds: when the host came to each mark of a step: the begin of the first one, and the
            end of each.
        done_seconds: when all work was done that had been launched until then.
    """

    record: Record
    host_seconds: tuple[float, ...]
    done_seconds: tuple[float, ...]


def record_of_trace(trace: ProfilerTrace, group: Group) -> TracedSteps:
    """Return the record of a trace and its steps; `group` gives the nodes of collectives."""
    builder = RecordBuilder()
    launching = {work.correlation for work in trace.works}
    launches = add_host(builder, trace, launching)
    moments = _step_moments(trace)
    add_works(builder, trace.works, launches, moments, group)
    begin = moments[0] / 1e9 if moments else 0.0
    return TracedSteps(
        builder.build(begin),
        tuple(moment / 1e9 for moment in moments),
        tuple(_done_at(moment, trace.works, launches) / 1e9 for moment in moments),
    )


def _step_moments(trace: ProfilerTrace) -> list[int]:
    main = main_thread(trace)
    events = () if main is None else trace.host[main]
    return [event.begin_ns for event in events if event.name == STEP_MARK]


def _done_at(moment: int, works: Sequence[Event], launches: dict[int, Launch]) -> int:
    """Return when all work was done that the host had launched until `moment`."""
    done = moment
    for work in works:
        launch = launches.get(work.correlation)
        launched = work.begin_ns if launch is None else launch.begin_ns
        if launched <= moment:
            done = max(done, work.end_ns)
    return done
