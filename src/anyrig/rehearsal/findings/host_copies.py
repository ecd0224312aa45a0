"""Copies for which the host waits, and how long they would take from pinned memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...virtual.predicted_seconds import predict_pinned_copy
from ...virtual.record_reading import IntervalKind
from .analysis import Analysis
from .change import Change

PINNED = "aten::copy_ (Pinned -> Device)"
PAGEABLE = "aten::copy_ (Pageable -> Device)"
NON_BLOCKING = "aten::copy_ (Pageable -> Device, non_blocking)"


def waits_for(analysis: Analysis, copies: Iterable[int]) -> dict[int, int]:
    """Return the host's waits for these copies, as a dictionary from wait to copy."""
    wanted = set(copies)
    return {
        place: edge.task
        for place in analysis.of_kind(IntervalKind.WAIT)
        for edge in analysis.schedule.tasks[place].edges
        if edge.task in wanted and analysis.name(place) == analysis.name(edge.task)
    }


def copies_named(analysis: Analysis, is_wanted: Callable[[str], bool]) -> list[int]:
    """Return the places of the copies for whose names `is_wanted` is true."""
    return [
        place
        for place in analysis.of_kind(IntervalKind.COPY)
        if is_wanted(analysis.name(place))
    ]  # fmt: skip


def as_if_pinned(analysis: Analysis, copies: list[int]) -> Change:
    """Return the change that copies from pinned memory, for which the host does not wait."""
    return Change(
        removed=frozenset(waits_for(analysis, copies)),
        seconds={place: _pinned_seconds(analysis, place) for place in copies},
    )


def _pinned_seconds(analysis: Analysis, place: int) -> float:
    device = analysis.device(place)
    assert device is not None
    return predict_pinned_copy(analysis.gpus[device], analysis.bytes(place))


def line_of_most(analysis: Analysis, places: Iterable[int]) -> str | None:
    """Return the line on which the tasks take the most time."""
    seconds: dict[str | None, float] = {}
    for place in places:
        line = analysis.line(place)
        seconds[line] = seconds.get(line, 0.0) + analysis.seconds_on_record(place)
    return max(seconds, key=seconds.__getitem__, default=None)
