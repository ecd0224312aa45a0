"""Detect without a system call that this process was forked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache


@dataclass
class Forks:
    """The number of forks between this process and the process that first called `count_forks`."""

    count: int = 0

    def add_one(self) -> None:
        """Count a fork."""
        self.count += 1


@cache
def count_forks() -> Forks:
    """Return the count of forks, which each forked process increases by one."""
    forks = Forks()
    if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
        os.register_at_fork(after_in_child=forks.add_one)
    return forks
