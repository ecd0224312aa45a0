"""A wait for the hosts of the other ranks, with an end that names whom it waited for.

A collective by itself ends after the group's time limit, and cannot say which rank did not come.
So a rank that has waited for a second says on the board where it waits, and looks where the others
are. Where two ranks wait at different places, neither of which the other has come to, both end at
once.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from ...processes.waits import waits_for_ranks
from .board import MEETING, UNEVEN_BATCHES, Waiting, board_of
from .membership import current_context

# Most waits are shorter, and cost nothing but the wait.
_LOOK_SECONDS = 1.0

_REMEDY = (
    f"{UNEVEN_BATCHES}. If the work there takes as long, allow more with the launcher's --timeout"
)


@waits_for_ranks
def wait_for_hosts(work: Any, what: str, number: int) -> None:
    """Wait until a collective over the hosts is done.

    Args:
        work: the collective, which all ranks begin.
        what: what an error calls it.
        number: how many such collectives there were up to this one, the same on each rank.

    Raises:
        RankWaitError: some rank did not come within the group's time limit; the message names it.
        RankMismatchError: another rank waits elsewhere, for this one.
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
        late = board.elsewhere(waiting)
        seconds = round(time.monotonic() - started)
        raise board.late(late, seconds, what, place, _REMEDY) from error
    board.stop_waiting()


def _is_done_soon(work: Any) -> bool:
    try:
        work.wait(timedelta(seconds=_LOOK_SECONDS))
    except RuntimeError:
        # A wait that ends early leaves the collective as it is.
        if work.is_completed():
            raise
        return False
    return True
