"""Candidates of rigs that exist as a formula only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anyrig.planning.candidate import Candidate, Verdict
from anyrig.planning.search import Point, search
from anyrig.planning.variation import Variation
from anyrig.rehearsal.comparison.compared_rig import compare_rig
from anyrig.virtual.rig import VirtualRig

GIB = 2**30
# What the upper bound adds to what a rehearsal counts, here.
MARGIN = GIB


def candidate(
    value: int | None, verdict: Verdict, spare_bytes: int | None, **facts: object
) -> Candidate:
    status = 0 if verdict in (Verdict.CERTAIN, Verdict.LIKELY) else 1
    if verdict is Verdict.NO:
        facts["error"] = {"kind": "OutOfMemoryError", "text": "CUDA out of memory", "line": None}
    found = compare_rig(VirtualRig.parse("T4"), status, facts, None, None)
    return Candidate(value, verdict, spare_bytes, found)


def rehearse(value: int, needed_bytes: float, limit_bytes: int) -> Candidate:
    """Return what a rehearsal finds on a GPU with `limit_bytes`."""
    if needed_bytes > limit_bytes:
        return candidate(value, Verdict.NO, None)
    spare = int(limit_bytes - needed_bytes - MARGIN)
    return candidate(value, Verdict.CERTAIN if spare >= 0 else Verdict.LIKELY, spare)


def run_search(
    variation: Variation,
    limit_bytes: int,
    needed: Callable[[int], float],
    hints: Sequence[Point] = (),
) -> list[Candidate]:
    """Search with a formula of memory; return what was tried, in order."""
    tried: list[Candidate] = []
    searching = search(variation, limit_bytes, hints)
    value = next(searching)
    while True:
        tried.append(rehearse(value, needed(value), limit_bytes))
        try:
            value = searching.send(tried[-1])
        except StopIteration:
            return tried
