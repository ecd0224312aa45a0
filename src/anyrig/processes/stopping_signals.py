"""The signals that end a group of ranks, and their handlers in the launcher."""

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
    """Raise SignalException, which makes torchrun's agent end its ranks; ignore later signals."""
    if threading.current_thread() is threading.main_thread():
        for stopping in _STOPPING:
            if signal.getsignal(stopping) is stop:
                signal.signal(stopping, _ignore)
    number = signal.Signals(signum)
    raise SignalException(f"got {number.name}", number)


def _ignore(signum: int, _: object) -> None:
    # Instead of SIG_IGN, which child processes would inherit.
    pass


@contextmanager
def handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Install `handler` for the stopping signals within the block.

    A signal that is ignored, such as SIGHUP under nohup, stays ignored. Outside the main thread
    this function does nothing, because only the main thread can set handlers.
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
