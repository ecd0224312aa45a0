"""A wait for the other ranks' hosts that names the ranks that did not come.

A collective ends after the group's time limit and does not report which rank is missing. So a rank
that has waited for a second writes on the board where it waits, and reads where the others are. If
two ranks wait at different places, and neither has reached the other's place, both raise at once.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from ...processes.waits import waits_for_ranks
from .board import LOOK_SECONDS, MEETING, UNEVEN_BATCHES, Waiting, board_of
from .membership import current_context

_REMEDY = (
    f"{UNEVEN_BATCHES}. If the work there takes as long, allow more with the launcher's --timeout"
)


@waits_for_ranks
def wait_for_hosts(work: Any, what: str, number: int) -> None:
    """Wait for the collective `work` between the hosts: `what` in an error message.

    The `number` of the collective is the same on every rank.

    Raises:
        RankWaitError: a rank did not come within the group's time limit; the message names it.
        RankMismatchError: this rank and another wait for each other at different places.
    """
    started = time.monotonic()
    if _is_done_soon(work):
        return
    board, waiting = board_of(current_context().group), Waiting(MEETING, number)
    place = board.come_to(what)
    try:
        while not _is_done_soon(work):
            board.look_around(waiting)
    except RuntimeError as error:
        if "timed out" not in str(error).lower():
            raise
        late = board.ranks_elsewhere(waiting)
        seconds = round(time.monotonic() - started)
        raise board.late(late, seconds, what, place, _REMEDY) from error
    board.stop_waiting()


def _is_done_soon(work: Any) -> bool:
    try:
        work.wait(timedelta(seconds=LOOK_SECONDS))
    except RuntimeError:
        # Unless the collective failed, only the wait timed out, and the collective goes on.
        if work.is_completed():
            raise
        return False
    return True
