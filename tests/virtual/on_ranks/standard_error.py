"""Discard what kernels and the profiler write to file descriptor 2, past Python's streams."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def standard_error_discarded() -> Iterator[None]:
    saved = os.dup(2)
    with Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
