"""How long kernels would take, by the cost model, if they did other work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from .analysis import Analysis
from .kernel_works import Work


def replace_works(
    analysis: Analysis, replace: Callable[[int, Work], Work | None]
) -> dict[int, float]:
    """Return the new seconds of the kernels whose works are replaced, by place.

    Args:
        analysis: the steps.
        replace: returns the other work of a kernel, from its place and its work; None if it stays.
    """
    changed = {}
    for place, kernel in analysis.kernels.items():
        works = [(work, replace(place, work)) for work in kernel.works]
        if any(new is not None for _, new in works):
            changed[place] = [old if new is None else new for old, new in works]
    return analysis.repriced(changed)


def line_of_saving(analysis: Analysis, seconds: Mapping[int, float]) -> str | None:
    """Return the line whose kernels save the most with the new seconds."""
    saved: dict[str | None, float] = defaultdict(float)
    for place, new in seconds.items():
        saved[analysis.line(place)] += analysis.schedule.tasks[place].seconds - new
    return max(saved, key=saved.__getitem__, default=None)
