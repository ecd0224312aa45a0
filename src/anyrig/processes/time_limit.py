"""The default timeout of collectives.

PyTorch's defaults are half an hour over gloo and ten minutes over NCCL. The launcher passes
``--timeout`` to the ranks in an environment variable.
"""

from __future__ import annotations

import os
from datetime import timedelta

from ..errors import LaunchError

TIME_LIMIT_VARIABLE = "ANYRIG_TIMEOUT_SECONDS"
_DEFAULT_SECONDS = 600.0

# PyTorch passes limits to system calls in milliseconds, as 32-bit numbers.
MOST_SECONDS = 1_000_000.0


def time_limit_seconds() -> float | None:
    """Return the launcher's ``--timeout``, or None.

    Raises:
        LaunchError: the variable is not a positive number, or too large.
    """
    text = os.environ.get(TIME_LIMIT_VARIABLE)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_SECONDS:
        raise LaunchError(
            f"{TIME_LIMIT_VARIABLE} is {text!r}, and must be a number of seconds above 0, and not "
            f"above {MOST_SECONDS:.0f}"
        )
    return seconds


def limit_or_default(seconds: float | None) -> float:
    """Return `seconds`, else the launcher's limit, else ten minutes.

    Raises:
        LaunchError: see `time_limit_seconds`.
    """
    limit = time_limit_seconds() if seconds is None else seconds
    return _DEFAULT_SECONDS if limit is None else limit


def set_time_limit() -> None:
    """Make the launcher's limit the default timeout of `init_process_group` and `new_group`.

    Imports torch only if there is a limit.
    """
    seconds = time_limit_seconds()
    if seconds is None:
        return
    from torch.distributed import distributed_c10d

    # There is no public way to set the defaults; both names are public for reading.
    limit = timedelta(seconds=seconds)
    distributed_c10d.default_pg_timeout = limit
    distributed_c10d.default_pg_nccl_timeout = limit  # type: ignore[attr-defined]
