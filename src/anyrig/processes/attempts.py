"""`Attempt`: when a group of ranks was started, and when it failed."""

from __future__ import annotations

from dataclasses import dataclass

from .failure import GroupFailure


@dataclass
class Attempt:
    """One attempt of a node's agent; each restart is another attempt.

    Times are in seconds since 1970; None if the event has not happened.

    Attributes:
        started_unix_seconds: when all ranks of the node had been started.
        failed_unix_seconds: when the agent noticed that a rank or a node had failed.
        ended_unix_seconds: when all ranks had ended after the failure.
        failure: why the attempt failed.
    """

    started_unix_seconds: float
    failed_unix_seconds: float | None = None
    ended_unix_seconds: float | None = None
    failure: GroupFailure | None = None
