"""R04: the host waits for a device in each step: ``.item()``, ``print``, ``.cpu()``, ``synchronize``.

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
    waits = [place for place in analysis.of_kind(IntervalKind.WAIT) if _reads(analysis, place)]
    lines = {analysis.line(place) for place in waits}
    copies = [
        place
        for place in analysis.of_kind(IntervalKind.COPY)
        if _reads(analysis, place) and analysis.line(place) in lines
    ]
    launches = {analysis.schedule.tasks[place].launch for place in copies} - {None}
    removed = frozenset([*waits, *copies, *(one for one in launches if one is not None)])
    saved = analysis.saving(Change(removed=removed)) if waits else 0.0
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


def _reads(analysis: Analysis, place: int) -> bool:
    name = analysis.name(place)
    return (
        "(Device ->" in name
        or name == "aten::_local_scalar_dense"
        or (name == "synchronize" and analysis.schedule.tasks[place].kind == IntervalKind.WAIT)
    )


def _times(count: int) -> str:
    return "once" if count <= 1 else f"{count} times"
