"""R06: parameters that do not change are sent to the replicas in each step.

`nn.DataParallel` and `replicate` broadcast all parameters each time. If no gradient comes back to
the same line, the parameters are frozen and the replicas could be kept.

The saving: the broadcasts and their launches are taken out of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...units import format_bytes
from ...virtual.record_reading import IntervalKind
from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .host_copies import line_of_most

CODE = "R06"


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter with replicas that are kept."""
    collectives = analysis.of_kind(IntervalKind.COLLECTIVE)
    trained = {analysis.line(place) for place in collectives if analysis.name(place) == "reduce"}
    broadcasts = [
        place
        for place in collectives
        if analysis.name(place) == "broadcast" and analysis.line(place) not in trained
    ]
    if not broadcasts or len({rank for rank, _ in analysis.gpus}) > 1:
        return
    launches = {analysis.schedule.tasks[place].launch for place in broadcasts}
    removed = frozenset([*broadcasts, *(one for one in launches if one is not None)])
    saved = analysis.saving(Change(removed=removed))
    if not analysis.matters(saved):
        return
    sent = max(analysis.bytes(place) for place in broadcasts)
    yield Finding(
        CODE,
        "Replicas of frozen parameters are rebuilt in each step",
        line_of_most(analysis, broadcasts),
        saved,
        None,
        "The parameters are broadcast to the replicas in each step, up to "
        f"{format_bytes(int(sent))} at a time, and get no gradients.",
        "Call torch.nn.parallel.replicate once before the loop, and in the loop only scatter, "
        "parallel_apply and gather.",
    )
