"""What differs between the versions of PyTorch that this room supports.

`tests/rehearsal/measured/test_profiler_versions.py` fails once the work-around can go.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_cycle_warning() -> Iterator[None]:
    """Drop the warning that a profile keeps the events of its last cycle alone.

    From 2.13, the profiler warns when a second cycle begins. PyTorch 2.11 warns at the start of
    every profile, even of one that has a single cycle.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        yield
