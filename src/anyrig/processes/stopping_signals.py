"""The signals that end a group of ranks, and what they do to the launcher."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch.distributed.elastic.multiprocessing import SignalException

_STOPPING = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
]


def stop(signum: int, _: object = None) -> NoReturn:
    """Raise what torchrun's agent expects, once: it then ends its ranks."""
    if threading.current_thread() is threading.main_thread():
        for each in _STOPPING:
            if signal.getsignal(each) is stop:
                signal.signal(each, _disregard)
    number = signal.Signals(signum)
    raise SignalException(f"got {number.name}", number)


def _disregard(signum: int, _: object) -> None:
    # Not SIG_IGN, which every process that is started would inherit.
    pass


@contextmanager
def handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Have `handler` called when one of the signals comes; for a while.

    One that this process ignores, as it does SIGHUP under nohup, stays ignored. In another thread
    than the main one this does nothing: signals are the main one's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPPING}
    try:
        for number, earlier in before.items():
            if earlier is not signal.SIG_IGN:
                signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
