"""The timelines of a rehearsal for Perfetto and chrome://tracing, in the trace event format.

::

    process rank 0   thread steps                    |   step 1   |   step 2   |
                     thread rank 0 host              |launch|launch|...
                     thread cuda:0 stream 0            |= mm =|= copy =|
                                                                 ↓ flow
                     thread cuda:1 stream 0                   |= copy =|
                     counter cuda:0 memory           tensors, workspaces, cached, context

Times are in microseconds with whole nanoseconds, so that neighbours on a thread never overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .facts import Facts
from .trace_threads import TraceThreads, divide_into_threads, span_ns

_STEPS_THREAD = 0  # those of tracks follow


def trace_events(facts: Facts) -> Iterator[dict[str, Any]]:
    """Return the events of a trace: names, steps, intervals, flows and memory."""
    threads = divide_into_threads(facts)
    yield from _names(threads)
    yield from _steps(facts)
    yield from _intervals(facts, threads)
    yield from _flows(facts, threads)
    yield from _memory(facts)


def _names(threads: TraceThreads) -> Iterator[dict[str, Any]]:
    for rank in sorted({thread.rank for thread in threads.threads}):
        yield _metadata("process_name", rank, _STEPS_THREAD, f"rank {rank}")
        yield _metadata("thread_name", rank, _STEPS_THREAD, "steps")
    for index, thread in enumerate(threads.threads):
        yield _metadata("thread_name", thread.rank, _number_of(index), thread.title)
        order = {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": thread.rank,
            "tid": _number_of(index),
            "args": {"sort_index": _number_of(index)},
        }
        yield order


def _metadata(name: str, rank: int, thread: int, title: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "tid": thread, "args": {"name": title}}


def _number_of(thread: int) -> int:
    return thread + 1


def _steps(facts: Facts) -> Iterator[dict[str, Any]]:
    for rank in sorted({track.rank for track in facts.tracks})[:1]:
        for step in facts.steps:
            yield {
                **_span(step.begin_seconds, step.end_seconds),
                "name": f"step {step.number}",
                "cat": "step",
                "pid": rank,
                "tid": _STEPS_THREAD,
                "args": {"samples": step.samples, "waits": step.waits},
            }


def _span(begin: float, end: float) -> dict[str, Any]:
    began, ended = span_ns(begin, end)
    return {"ph": "X", "ts": began / 1e3, "dur": (ended - began) / 1e3}


def _intervals(facts: Facts, threads: TraceThreads) -> Iterator[dict[str, Any]]:
    columns, texts = facts.intervals, facts.texts
    for i, (track, begin, seconds) in enumerate(
        zip(columns.track, columns.begin_seconds, columns.seconds, strict=True)
    ):
        args: dict[str, Any] = {}
        if columns.module[i] >= 0:
            args["module"] = texts[columns.module[i]]
        if columns.line[i] >= 0:
            args["line"] = texts[columns.line[i]]
        if columns.bytes[i] >= 0:
            args["bytes"] = columns.bytes[i]
        yield {
            **_span(begin, begin + seconds),
            "name": texts[columns.name[i]] if columns.name[i] >= 0 else "unknown",
            "cat": texts[columns.kind[i]],
            "pid": facts.tracks[track].rank,
            "tid": _number_of(threads.of_interval[i]),
            "args": args,
        }


def _flows(facts: Facts, threads: TraceThreads) -> Iterator[dict[str, Any]]:
    columns = facts.intervals
    members: dict[int, list[int]] = defaultdict(list)
    for i, flow in enumerate(columns.flow):
        if flow >= 0:
            members[flow].append(i)
    for flow, intervals in members.items():
        for place, i in enumerate(intervals):
            phase = "s" if place == 0 else "f" if place == len(intervals) - 1 else "t"
            # In the middle, since a flow belongs to the slice that encloses its time.
            middle = columns.begin_seconds[i] + columns.seconds[i] / 2
            yield {
                "ph": phase,
                **({"bp": "e"} if phase == "f" else {}),
                "name": facts.texts[columns.kind[i]],
                "cat": facts.texts[columns.kind[i]],
                "id": flow,
                "ts": round(middle * 1e9) / 1e3,
                "pid": facts.tracks[columns.track[i]].rank,
                "tid": _number_of(threads.of_interval[i]),
            }


def _memory(facts: Facts) -> Iterator[dict[str, Any]]:
    for one in facts.memory:
        layers = {
            "tensors": one.tensor_bytes,
            "workspaces": one.workspace_bytes,
            "cached": one.cached_bytes,
            "context": one.context_bytes,
        }
        known = {name: values for name, values in layers.items() if values is not None}
        for seconds, *values in zip(one.seconds, *known.values(), strict=True):
            yield {
                "ph": "C",
                "name": f"cuda:{one.device} memory",
                "ts": round(seconds * 1e9) / 1e3,
                "pid": one.rank,
                "args": dict(zip(known, values, strict=True)),
            }
