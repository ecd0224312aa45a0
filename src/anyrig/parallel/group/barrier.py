"""A barrier with an end that names whom it waited for."""

from __future__ import annotations

from .board import board_of
from .membership import join_group


def barrier(*, timeout_seconds: float = 600.0) -> None:
    """Wait until every rank has come here.

    It goes through the store in which the ranks met, so it is the same on every backend, needs no
    device, and does not wait for what devices have queued. In a process that is the only rank it
    does nothing.

    Raises:
        RankWaitError: some rank did not come in time; the message names it, its host, and what it
            last came to.
    """
    group = join_group()
    if group is not None:
        board_of(group).exchange("barrier", b"", timeout_seconds, "a barrier")
