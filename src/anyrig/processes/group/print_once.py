"""Print on one rank only."""

from __future__ import annotations

import os
from typing import Any

from .membership import current_group


def print_once(*values: Any, **options: Any) -> None:
    """Call `print` with these arguments on rank 0 only; no rank waits.

    In a process that is the only rank, this is `print`.
    """
    group = current_group()
    # Before the script has joined a group, only the launcher's variable gives the rank.
    rank = (os.environ.get("RANK") or "0") if group is None else str(group.rank)
    if rank == "0":
        print(*values, **options)  # noqa: T201 - this is its purpose
