"""Moving copies to a stream of their own, one step ahead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .analysis import Analysis
from .schedule import Edge, Follows


def edges_ahead(analysis: Analysis, copies: Sequence[int]) -> dict[int, tuple[Edge, ...]]:
    """Return the edges of the copies, and of the work that follows them on their streams.

    A copy follows the launch of the corresponding copy of the previous step, and the copy before
    it. Work that followed a copy still follows it, and also what came before the copy on the
    stream.
    """
    tasks = analysis.schedule.tasks
    ahead = _a_step_before(analysis, copies)
    moved = set(copies)
    edges: dict[int, tuple[Edge, ...]] = {}
    last_copy: dict[int, int] = {}
    for place in copies:
        track = tasks[place].track
        own = []
        launch = tasks[ahead[place]].launch if place in ahead else None
        if launch is not None:
            own.append(Edge(Follows.LAUNCH, launch))
        if track in last_copy:
            own.append(Edge(Follows.TRACK, last_copy[track]))
        edges[place] = tuple(own)
        last_copy[track] = place
    for place, task in enumerate(tasks):
        if place in moved or not any(edge.task in moved for edge in task.edges):
            continue
        kept = [edge for edge in task.edges if edge.task not in moved]
        for edge in task.edges:
            before: int | None = edge.task
            while before is not None and before in moved:
                kept.append(Edge(Follows.MOMENT, before))
                before = _before_on_track(analysis, before)
            if before is not None and before != edge.task:
                kept.append(Edge(Follows.TRACK, before))
        edges[place] = tuple(kept)
    return edges


def _before_on_track(analysis: Analysis, place: int) -> int | None:
    edges = analysis.schedule.tasks[place].edges
    return next((edge.task for edge in edges if edge.follows == Follows.TRACK), None)


def _a_step_before(analysis: Analysis, places: Sequence[int]) -> dict[int, int]:
    """Return the corresponding copy of the previous step, for each copy that has one."""
    by_step: dict[int, list[int]] = defaultdict(list)
    for place in places:
        by_step[analysis.schedule.tasks[place].step].append(place)
    return {
        place: before
        for step, those in by_step.items()
        if len(by_step.get(step - 1, ())) == len(those)
        for place, before in zip(those, by_step[step - 1], strict=True)
    }
