"""Printing once, not once a rank."""

from __future__ import annotations

import os
from typing import Any

from .membership import current_group


def print_once(*values: Any, **options: Any) -> None:
    """Print on rank 0 only; the arguments are those of `print`. It waits for nobody.

    In a process that is the only rank it is `print`.
    """
    group = current_group()
    # A script may print before it has joined its group; then the launcher has said who this is.
    rank = os.environ.get("RANK", "0") if group is None else str(group.rank)
    if rank == "0":
        print(*values, **options)  # noqa: T201 - it is what this is for
