"""R01: a device that idles while its process launches the work of another device.

::

    host      |launch for cuda:0|launch for cuda:1|launch for cuda:0|
    cuda:0    |==== works =======|     idles       |==== works =====|
    cuda:1    |      idles       |==== works =====|     idles

The saving: each device gets a process of its own, which launches what that device gets now; a step
takes as long as the slowest of them. Only devices that exchange nothing can be separated in this
way. The waits and copies of other findings are taken out first, as they would remain.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...virtual.record_reading import IntervalKind
from ..facts import Finding
from .analysis import Analysis
from .blocking_copies import copied_ahead
from .change import Change, typical_seconds
from .host_copies import line_of_most
from .host_waits import without_waits
from .pageable_copies import from_pinned_memory

CODE = "R01"


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if processes of their own would make the steps shorter."""
    devices = sorted(_devices_with_work(analysis))
    if len({rank for rank, _ in devices}) != 1 or len(devices) < 2 or _exchange(analysis):
        return
    remedied = (
        without_waits(analysis) | from_pinned_memory(analysis) | copied_ahead(analysis)
    )  # fmt: skip
    alone = {
        device: typical_seconds(analysis.schedule, remedied | _only_on(analysis, device))
        for device in devices
    }
    saved = typical_seconds(analysis.schedule, remedied) - max(alone.values())
    if not analysis.matters(saved):
        return
    slowest = max(alone, key=alone.__getitem__)
    others = ", ".join(f"cuda:{index}" for _, index in devices if index != slowest[1])
    work = [
        place
        for place in analysis.of_kind(IntervalKind.KERNEL)
        if analysis.device(place) == slowest
    ]
    idle = {(one.rank, one.index): one.idle_share for one in analysis.devices}
    shares = ", ".join(
        f"cuda:{index} {100 * idle[rank, index]:.0f} %"
        for rank, index in devices
        if (rank, index) in idle
    )
    yield Finding(
        CODE,
        f"cuda:{slowest[1]} idles while the host launches for {others}",
        line_of_most(analysis, work),
        saved,
        None,
        f"One process launches the work of {len(devices)} GPUs in turn, so that each idles "
        f"meanwhile: {shares} of the time. They exchange nothing.",
        "Give each GPU a process of its own: anyrig run --device all.",
    )


def _devices_with_work(analysis: Analysis) -> set[tuple[int, int]]:
    return {
        device
        for place in analysis.of_kind(IntervalKind.KERNEL)
        if (device := analysis.device(place)) is not None
    }


def _exchange(analysis: Analysis) -> bool:
    """Return whether devices of this process exchange anything, or ranks do."""
    return any(
        analysis.flow(place) >= 0 or task.kind == IntervalKind.COLLECTIVE
        for place, task in enumerate(analysis.schedule.tasks)
    )


def _only_on(analysis: Analysis, device: tuple[int, int]) -> Change:
    """Return the change that takes out what the host does for other devices."""
    removed = set()
    for place, task in enumerate(analysis.schedule.tasks):
        if analysis.device(place) not in (None, device):
            removed.add(place)
            if task.launch is not None:
                removed.add(task.launch)
    return Change(removed=frozenset(removed))
