"""`read_trace`: the events of a trace that PyTorch's profiler exports, which Kineto writes.

::

    cpu_op, user_annotation       pid: the process, tid: its thread     operators and marks
    cuda_runtime, cuda_driver     likewise; "correlation" names the work that a call launched
    kernel, gpu_memcpy, …         pid: the device, tid: the stream; the same "correlation"
    fwdbwd                        arrows from an operator to its node of the backward pass
    cpu_instant_event "[memory]"  what an allocator had handed out and taken

``ts`` and ``dur`` are microseconds with three decimals, since ``baseTimeNanoseconds``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_HOST = frozenset({"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_WORKS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_MEMORY = "[memory]"
_BACKWARD_LINK = "fwdbwd"

# (thread, nanoseconds) of the begin of an operator.
Moment = tuple[int, int]


class Event(NamedTuple):
    """What the profiler saw.

    Attributes:
        category: the category in the trace.
        name: the operator, the call or the kernel.
        begin_ns: when it began, in nanoseconds since the origin.
        end_ns: when it ended; equal to `begin_ns` for a moment.
        place: the thread, or the (device, stream) of the work of a device.
        args: the rest.
    """

    category: str
    name: str
    begin_ns: int
    end_ns: int
    place: Any
    args: Mapping[str, Any]

    @property
    def is_call(self) -> bool:
        """Whether this is a call of the CUDA runtime or driver."""
        return self.category in _CALLS

    @property
    def correlation(self) -> int:
        """The number that a call and the work that it launched share; -1 without one."""
        return int(self.args.get("correlation", -1))


@dataclass(frozen=True)
class ProfilerTrace:
    """The events of a trace.

    Attributes:
        host: operators, annotations and calls by thread; an event comes before those inside it.
        works: the work of devices, in the order of time.
        memory: what allocators reported, in the order of time.
        forward_of: the forward operator of each node of a backward pass, by their begins.
    """

    host: Mapping[int, Sequence[Event]]
    works: Sequence[Event]
    memory: Sequence[Event]
    forward_of: Mapping[Moment, Moment]


def read_trace(path: Path, origin_ns: int = 0) -> ProfilerTrace:
    """Return the events of a trace.

    Args:
        path: the file.
        origin_ns: the moment from which times count, in nanoseconds since 1970.

    Raises:
        ValueError: the file is not such a trace.
        OSError: the file cannot be read.
    """
    content = json.loads(path.read_bytes().decode("utf-8", "replace"))
    try:
        base_ns = int(content.get("baseTimeNanoseconds", 0)) - origin_ns
        return _sorted_events(content["traceEvents"], base_ns)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} is not a trace of Kineto: {error!r}") from error


def _sorted_events(events: Sequence[Mapping[str, Any]], base_ns: int) -> ProfilerTrace:
    host: dict[int, list[Event]] = defaultdict(list)
    works: list[Event] = []
    memory: list[Event] = []
    link_begins: dict[int, Moment] = {}
    link_ends: dict[int, Moment] = {}
    for one in events:
        category, phase = one.get("cat"), one["ph"]
        if phase == "X" and category in _HOST:
            host[one["tid"]].append(_event(one, base_ns, one["tid"]))
        elif phase == "X" and category in _WORKS:
            args = one.get("args", {})
            place = (int(args.get("device", one["pid"])), int(args.get("stream", one["tid"])))
            works.append(_event(one, base_ns, place))
        elif category == _BACKWARD_LINK:
            ends = link_begins if phase == "s" else link_ends
            ends[one["id"]] = (one["tid"], base_ns + round(one["ts"] * 1000))
        elif one["name"] == _MEMORY:
            memory.append(_event(one, base_ns, one["tid"]))
    for thread in host.values():
        thread.sort(key=lambda event: (event.begin_ns, -event.end_ns))
    works.sort(key=lambda event: event.begin_ns)
    memory.sort(key=lambda event: event.begin_ns)
    return ProfilerTrace(
        dict(host),
        works,
        memory,
        {link_ends[link]: begin for link, begin in link_begins.items() if link in link_ends},
    )


def _event(one: Mapping[str, Any], base_ns: int, place: Any) -> Event:
    begin_ns = base_ns + round(one["ts"] * 1000)
    end_ns = begin_ns + max(0, round(one.get("dur", 0) * 1000))
    return Event(one.get("cat", ""), one["name"], begin_ns, end_ns, place, one.get("args", {}))
