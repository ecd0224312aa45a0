"""`FaultFacts`: what happened after an injected failure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FaultFacts:
    """What happened after an injected failure. Times are in seconds by this machine's clock.

    Attributes:
        rank: the rank that failed.
        step: the number of the step in which it failed.
        kind: how it failed: ``kill``, ``slow`` or ``link``.
        factor: how many times as long the kernels took.
        happened: whether the rank reached that step.
        detected_seconds: how long the launcher took to notice; None if it noticed nothing.
        ended_seconds: how long it took until all ranks had ended.
        restarted_seconds: how long it took until the ranks were started again.
        first_step_seconds: how long it took until each rank had taken a step again.
        hung: whether ranks waited until the time limit of collectives.
        limit_seconds: that limit; None if unknown.
        cause: what the launcher reported as the cause of the failure.
        step_seconds_before: for a slow rank, the median time of the steps before the failure, in
            virtual time.
        step_seconds_after: the same for the steps after the failure.
    """

    rank: int
    step: int
    kind: str
    factor: float
    happened: bool
    detected_seconds: float | None = None
    ended_seconds: float | None = None
    restarted_seconds: float | None = None
    first_step_seconds: float | None = None
    hung: bool = False
    limit_seconds: float | None = None
    cause: str | None = None
    step_seconds_before: float | None = None
    step_seconds_after: float | None = None
