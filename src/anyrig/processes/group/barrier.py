"""A barrier that names missing ranks."""

from __future__ import annotations

from ..time_limit import limit_or_default
from .board import board_of
from .membership import join_group


def barrier(*, timeout_seconds: float | None = None) -> None:
    """Wait until every rank has called this function.

    The barrier uses the store of the process group. It therefore works with every backend, needs
    no device, and does not wait for work that is queued on devices. In a process that is the only
    rank, it returns at once.

    Args:
        timeout_seconds: how long to wait; None for the launcher's ``--timeout``, else ten minutes.

    Raises:
        RankWaitError: a rank did not arrive in time; the message names the rank, its host, and the
            call that it last reached.
    """
    group = join_group()
    if group is not None:
        board_of(group).exchange("barrier", b"", limit_or_default(timeout_seconds), "a barrier")
