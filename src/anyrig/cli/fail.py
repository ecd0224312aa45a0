"""`anyrig rehearse --fail`: let a rank fail on purpose, and report how the program goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..processes.attempts import Attempt
    from ..processes.launcher import GroupResult
    from ..processes.options import RunOptions
    from ..rehearsal.facts import FaultFacts, StepFacts
    from ..rehearsal.failing.account import AttemptTimes
    from ..rehearsal.failing.fault import Fault
    from ..rehearsal.failing.watched_fault import WatchedFault
    from ..rehearsal.placement import Placement

FAIL = "--fail"


def read_fault(text: str, ranks: tuple[Placement, RunOptions] | None) -> Fault:
    """Return the failure that ``--fail`` names, after checking that there is such a rank.

    Raises:
        typer.BadParameter: the text does not describe a failure, or the rehearsal has no such rank.
    """
    from ..errors import ReportError
    from ..rehearsal.failing.cut_link import can_cut_links
    from ..rehearsal.failing.fault import LINK, Fault

    try:
        fault = Fault.parse(text)
    except ReportError as error:
        raise typer.BadParameter(str(error), param_hint=FAIL) from None
    count = 1 if ranks is None else ranks[1].processes
    if count == 1:
        raise typer.BadParameter(
            "it needs several ranks, and this rehearsal has one process; add --device all, or "
            "--nproc-per-node",
            param_hint=FAIL,
        )
    if fault.rank >= count:
        raise typer.BadParameter(
            f"there is no rank {fault.rank}; the ranks are 0 to {count - 1}", param_hint=FAIL
        )
    if fault.kind == LINK and not can_cut_links():
        raise typer.BadParameter(
            "link needs Linux, whose kernel can drop the data of a connection; use kill or slow",
            param_hint=FAIL,
        )
    return fault


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
