"""Stopping the replicas of a step when one of them has failed."""

from __future__ import annotations


class Stopped(BaseException):
    """Ends a replica whose result nobody will see; not for modules that catch `Exception`."""


class Stop:
    """A flag of one step, looked at where replicas read parameters and where they meet."""

    raised = False
