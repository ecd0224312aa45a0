"""Copies from the host for which the host waits, and what they would take from pinned memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...hardware import coefficients_of, values_of
from ...virtual.record_reading import IntervalKind
from ...virtual.rig import VirtualDevice
from .analysis import Analysis

PINNED = "aten::copy_ (Pinned -> Device)"
PAGEABLE = "aten::copy_ (Pageable -> Device)"
NON_BLOCKING = "aten::copy_ (Pageable -> Device, non_blocking)"


def waits_for(analysis: Analysis, copies: Iterable[int]) -> dict[int, int]:
    """Return the waits of the host for the copies: from the wait to the copy."""
    wanted = set(copies)
    return {
        place: edge.task
        for place in analysis.of_kind(IntervalKind.WAIT)
        for edge in analysis.schedule.tasks[place].edges
        if edge.task in wanted and analysis.name(place) == analysis.name(edge.task)
    }


def copies_named(analysis: Analysis, is_wanted: Callable[[str], bool]) -> list[int]:
    """Return the copies whose names are wanted."""
    return [
        place
        for place in analysis.of_kind(IntervalKind.COPY)
        if is_wanted(analysis.name(place))
    ]  # fmt: skip


def pinned_seconds(analysis: Analysis, place: int) -> float:
    """Return how long a copy from the host takes from pinned memory: ``cost/copy_cost.cpp``."""
    device = analysis.device(place)
    assert device is not None
    return _copy_seconds(analysis.cards[device], analysis.bytes(place))


def _copy_seconds(device: VirtualDevice, bytes_: float) -> float:
    values = values_of(coefficients_of(device.rates))
    rate = device.rates.pcie_bytes_per_second * values["copy.pcie_fraction"][0]
    return float(values["copy.start_seconds"][0] + bytes_ / rate)


def line_of_most(analysis: Analysis, places: Iterable[int]) -> str | None:
    """Return the line on which the tasks take the most time."""
    seconds: dict[str | None, float] = {}
    for place in places:
        line = analysis.line(place)
        seconds[line] = seconds.get(line, 0.0) + analysis.seconds_on_record(place)
    return max(seconds, key=seconds.__getitem__, default=None)
