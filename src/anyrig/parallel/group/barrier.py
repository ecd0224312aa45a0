"""A barrier with an end that names whom it waited for."""

from __future__ import annotations

from ...processes.time_limit import limit_or_default
from .board import board_of
from .membership import join_group


def barrier(*, timeout_seconds: float | None = None) -> None:
    """Wait until every rank has come here.

    It goes through the store in which the ranks met, so it is the same on every backend, needs no
    device, and does not wait for what devices have queued. In a process that is the only rank it
    does nothing.

    Args:
        timeout_seconds: how long to wait; None for what the launcher was given as ``--timeout``,
            else ten minutes.

    Raises:
        RankWaitError: some rank did not come in time; the message names it, its host, and what it
            last came to.
    """
    group = join_group()
    if group is not None:
        board_of(group).exchange("barrier", b"", limit_or_default(timeout_seconds), "a barrier")
