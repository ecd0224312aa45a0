"""A thread for each device, kept for the life of the process and shared by all models."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

# How long to wait at a time; in between it is looked whether the thread is still there.
_LOOK_SECONDS = 5.0


class Call:
    """One call made in a worker's thread: wait for it, then look at `error` and `result`."""

    def __init__(self, function: Callable[[], Any], worker: Worker) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._function: Callable[[], Any] | None = function
        self._worker = worker
        self._done = threading.Event()

    def run(self) -> None:
        """Make the call, in the worker's thread."""
        function, self._function = self._function, None
        try:
            if function is not None:
                self.result = function()
        except BaseException as error:  # raised where it is waited for
            self.error = error
        finally:
            self._done.set()

    def wait(self) -> None:
        """Return when the call has ended; a KeyboardInterrupt ends the waiting, not the call.

        Raises:
            RuntimeError: the thread has died, so that the call will never end.
        """
        while not self._done.wait(_LOOK_SECONDS):
            if not self._worker.alive:
                raise RuntimeError(
                    f"the thread of {self._worker.device} has died and left a call undone"
                )


class Worker:
    """The thread of one device. It makes one call after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        # A daemon: it waits for work until the process ends, and must not keep it from ending.
        self._thread = threading.Thread(
            target=_work, args=(self._calls,), name=f"anyrig {device}", daemon=True
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether there is a thread: not after a fork."""
        return self._thread.is_alive()

    def start(self, function: Callable[[], Any]) -> Call:
        """Have a function called as soon as the calls before it have ended."""
        call = Call(function, self)
        self._calls.put(call)
        return call


def _work(calls: queue.SimpleQueue[Call]) -> None:
    while True:
        call = calls.get()
        call.run()
        del call  # else the last result would be kept until the next call


_workers: dict[torch.device, Worker] = {}
_lock = threading.Lock()


def start_all(functions: list[tuple[torch.device, Callable[[], Any]]]) -> list[Call]:
    """Start functions on their devices' threads, all before those of a later `start_all`.

    So calls that wait for each other cannot stand behind calls that wait for them.
    """
    with _lock:
        return [_worker_of(device).start(function) for device, function in functions]


def _worker_of(device: torch.device) -> Worker:
    worker = _workers.get(device)
    if worker is None or not worker.alive:
        worker = _workers[device] = Worker(device)
    return worker
