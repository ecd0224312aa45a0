"""What SIGTERM does to a command that has started rehearsals."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """End the block by `SystemExit` when this process gets SIGTERM.

    So the rehearsals end, and temporary folders are removed. Outside of the main thread, and where
    SIGTERM is ignored, this does nothing.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
