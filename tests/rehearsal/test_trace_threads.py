"""The threads of a trace, on which no two slices overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anyrig.rehearsal.facts import Facts, Intervals, Track
from anyrig.rehearsal.trace import trace_events

TRACKS = (
    Track("host", 0, None, None),
    Track("stream 7", 0, 0, 7),
    Track("stream 9", 0, 0, 9),
)


def events_of(*spans: tuple[int, float, float]) -> list[dict[str, Any]]:
    """Return the trace of intervals (track, begin, end) in microseconds, with one flow."""
    tracks, begins, ends = zip(*spans, strict=True)
    zeros, unknown = [0] * len(spans), [-1] * len(spans)
    intervals = Intervals(
        track=tracks,
        begin_seconds=[begin / 1e6 for begin in begins],
        seconds=[(end - begin) / 1e6 for begin, end in zip(begins, ends, strict=True)],
        kind=zeros,
        name=zeros,
        module=unknown,
        line=unknown,
        bytes=unknown,
        flow=zeros,
    )
    about = Facts("train.py", (), "T4", False, "2.13.0", "0.1.0")
    facts = replace(about, tracks=TRACKS, texts=("kernel",), intervals=intervals)
    return list(trace_events(facts))


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(1, 0, 10), (1, 10, 12)], ["stream 7", "stream 7"]),
        ([(1, 0, 10), (1, 9.999, 12)], ["stream 7", "stream 7 (2)"]),
        ([(1, 0, 10), (1, 2, 4), (1, 4, 6)], ["stream 7", "stream 7 (2)", "stream 7 (2)"]),
        ([(1, 0, 10), (1, 2, 9), (1, 3, 4)], ["stream 7", "stream 7 (2)", "stream 7 (3)"]),
        ([(1, 0, 10), (2, 5, 15), (1, 12, 13)], ["stream 7", "stream 9", "stream 7"]),
        ([(1, -4, -3), (1, -3, 0)], ["stream 7", "stream 7"]),
        ([(1, 1e9 + 0.0004, 1e9 + 0.1), (1, 1e9 + 0.1, 1e9 + 0.2)], ["stream 7", "stream 7"]),
    ],
)
def test_intervals_that_overlap_get_another_thread(
    spans: list[tuple[int, float, float]], expected: list[str]
) -> None:
    events = events_of(*spans)
    titles = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    assert [titles[one["tid"]] for one in slices] == expected
    # Each track has a thread, and an arrow joins the slices where they are.
    assert {"steps", "host", "stream 7", "stream 9", *expected} == {*titles.values()}
    arrow = [event["tid"] for event in events if event["ph"] in "stf"]
    assert arrow == [one["tid"] for one in slices]
