"""What happened after an injected failure, from the notes of the ranks and of their launcher."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..facts import StepFacts
from ..fault_facts import FaultFacts
from .fault import SLOW, Fault
from .rank_events import FAILED, STEPPED, RankEvent


@dataclass(frozen=True)
class AttemptTimes:
    """One attempt of the launcher. Times are in seconds since 1970; None for what has not happened.

    Attributes:
        started: when the ranks had been started.
        failed: when the launcher noticed a failure.
        ended: when all ranks had ended after that.
        hung: whether ranks waited for others until the time limit of collectives.
        cause: what the launcher reported as the cause; None if the attempt did not fail.
    """

    started: float
    failed: float | None
    ended: float | None
    hung: bool
    cause: str | None


def account_for(
    fault: Fault,
    events: Sequence[RankEvent],
    attempts: Sequence[AttemptTimes],
    limit_seconds: float,
    steps: Sequence[StepFacts],
) -> FaultFacts:
    """Return what happened after an injected failure.

    Args:
        fault: the failure.
        events: the notes of the ranks.
        attempts: the launcher's attempts.
        limit_seconds: the time limit of collectives.
        steps: the steps of the ranks, for a slow rank.
    """
    about = (fault.rank, fault.step, fault.kind, fault.factor)
    began = next((event.unix_seconds for event in events if event.what == FAILED), None)
    if began is None:
        return FaultFacts(*about, happened=False)
    if fault.kind == SLOW:
        # The first step includes all that comes before it.
        before = [step.seconds for step in steps if 1 < step.number < fault.step]
        after = [step.seconds for step in steps if step.number >= fault.step]
        return FaultFacts(
            *about,
            happened=True,
            step_seconds_before=statistics.median(before) if before else None,
            step_seconds_after=statistics.median(after) if after else None,
        )
    first, *later = attempts
    stepped = [event for event in events if event.what == STEPPED and event.attempt > 0]
    ranks = {event.rank for event in events if event.what == STEPPED}
    by_rank = {event.rank: event.unix_seconds for event in reversed(stepped)}

    def since(moment: float | None) -> float | None:
        return None if moment is None else moment - began

    return FaultFacts(
        *about,
        happened=True,
        detected_seconds=since(first.failed),
        ended_seconds=since(first.ended),
        restarted_seconds=since(later[0].started) if later else None,
        first_step_seconds=since(max(by_rank.values())) if ranks <= by_rank.keys() else None,
        hung=first.hung,
        limit_seconds=limit_seconds if first.hung else None,
        cause=first.cause,
    )
