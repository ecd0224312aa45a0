"""R04: ``.item()``, ``print``, ``.cpu()`` or ``synchronize`` in each step: the host waits.

The saving: the waits and the copies that they are for are taken out of the schedule, with their
launches, so that the host runs ahead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ...virtual.record_reading import IntervalKind
from ..facts import Finding
from .analysis import Analysis
from .change import Change

CODE = "R04"

_SYNCHRONIZE = "synchronize"
_MOST_LINES = 4


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter without the waits."""
    waits = _waits(analysis)
    if not waits:
        return
    saved = analysis.saving(without_waits(analysis))
    if not analysis.matters(saved):
        return
    seconds: dict[str | None, float] = defaultdict(float)
    for place in waits:
        seconds[analysis.line(place)] += analysis.seconds_on_record(place)
    longest = sorted(seconds, key=lambda line: -seconds[line])
    count = round(len(waits) / analysis.schedule.steps)
    others = [line for line in longest[1:] if line is not None]
    also = f", also at {', '.join(others)}" if others else ""
    yield Finding(
        CODE,
        "The host waits for a GPU in each step",
        longest[0],
        saved,
        None,
        f"The host reads a value or synchronizes {_times(count)} in a step{also}. Meanwhile it "
        "launches nothing, and afterwards the GPU waits for the next launches.",
        _remedy(analysis, waits, longest),
    )


def _remedy(analysis: Analysis, waits: list[int], lines: list[str | None]) -> str:
    """Return what to change at each line, the longest wait first."""
    calls = {analysis.line(place) for place in waits if analysis.name(place) == _SYNCHRONIZE}
    reads = {analysis.line(place) for place in waits if analysis.name(place) != _SYNCHRONIZE}
    parts = []
    if reads:
        parts.append(
            f"{_at(lines, reads)}, keep the value on the GPU, as in total += loss.detach() in "
            "place of loss.item(), and read or print it once in many steps"
        )
    if calls:
        parts.append(f"{_at(lines, calls)}, remove torch.cuda.synchronize()")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _at(lines: list[str | None], chosen: set[str | None]) -> str:
    named = [line for line in lines if line in chosen and line is not None]
    if not named:
        return "where the host waits"
    more = len(named) - _MOST_LINES
    return f"at {', '.join(named[:_MOST_LINES])}{f' and {more} more lines' if more > 0 else ''}"


def without_waits(analysis: Analysis) -> Change:
    """Return the change that takes out the waits, and the copies that they are for."""
    waits = _waits(analysis)
    lines = {analysis.line(place) for place in waits}
    copies = [
        place
        for place in analysis.of_kind(IntervalKind.COPY)
        if _reads(analysis, place) and analysis.line(place) in lines
    ]
    launches = [launch for one in copies if (launch := analysis.schedule.tasks[one].launch)]
    return Change(removed=frozenset([*waits, *copies, *launches]))


def _waits(analysis: Analysis) -> list[int]:
    return [place for place in analysis.of_kind(IntervalKind.WAIT) if _reads(analysis, place)]


def _reads(analysis: Analysis, place: int) -> bool:
    name = analysis.name(place)
    return (
        "(Device ->" in name
        or name == "aten::_local_scalar_dense"
        or (name == _SYNCHRONIZE and analysis.schedule.tasks[place].kind == IntervalKind.WAIT)
    )


def _times(count: int) -> str:
    return "once" if count <= 1 else f"{count} times"
