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
        "Keep values on the GPU, for example a sum of loss.detach(), and read or print them once "
        "in many steps; remove torch.cuda.synchronize().",
    )


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
        or (name == "synchronize" and analysis.schedule.tasks[place].kind == IntervalKind.WAIT)
    )


def _times(count: int) -> str:
    return "once" if count <= 1 else f"{count} times"
