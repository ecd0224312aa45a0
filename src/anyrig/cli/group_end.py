"""Facts of a report from the launcher's account of how a group of ranks ended."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..processes.attempts import Attempt
    from ..processes.launcher import GroupResult
    from ..processes.options import RunOptions
    from ..rehearsal.facts import ProgramError, StepFacts
    from ..rehearsal.failing.account import AttemptTimes
    from ..rehearsal.failing.watched_fault import WatchedFault
    from ..rehearsal.fault_facts import FaultFacts


def error_of_group(result: GroupResult) -> ProgramError | None:
    """Return the exception of the rank that caused a group's failure, or that it was killed.

    None if there was neither.
    """
    from ..processes.rank_end import Ending
    from ..rehearsal.facts import KILLED_RANK, ProgramError

    first = None if result.failure is None else result.failure.first
    if first is not None and first.ending is Ending.KILLED and first.exit_code == -signal.SIGKILL:
        return ProgramError(KILLED_RANK, f"rank {first.rank} was killed", None)
    if first is None:
        return None
    place = first.place
    line = None if place is None else Path(place.partition(" in ")[0]).name
    if first.exit_words is not None:
        return ProgramError(SystemExit.__name__, first.exit_words, line)
    if first.traceback is None or first.last_error is None:
        return None
    kind, _, text = first.last_error.partition(": ")
    return ProgramError(kind.rpartition(".")[2], text, line)


def account_for_fault(
    watched: WatchedFault, result: GroupResult, options: RunOptions, steps: Sequence[StepFacts]
) -> FaultFacts:
    """Return what happened after an injected failure, once the ranks have ended."""
    from ..processes.time_limit import limit_or_default

    attempts = [_times_of(attempt) for attempt in result.attempts]
    return watched.account(attempts, limit_or_default(options.timeout_seconds), steps)


def _times_of(attempt: Attempt) -> AttemptTimes:
    from ..processes.rank_end import Ending
    from ..rehearsal.failing.account import AttemptTimes

    failure = attempt.failure
    endings = set() if failure is None else {end.ending for end in failure.ends}
    return AttemptTimes(
        attempt.started_unix_seconds,
        attempt.failed_unix_seconds,
        attempt.ended_unix_seconds,
        Ending.TIMED_OUT in endings,
        None if failure is None else failure.cause,
    )
