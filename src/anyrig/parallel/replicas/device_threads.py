"""A thread for each device, kept for the life of the process and shared by all models."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

# How long to wait at a time; in between it is looked whether the thread is still there.
_LOOK_SECONDS = 5.0

Function = Callable[[], Any]


class Call:
    """One call made in a device's thread: wait for it, then look at `error` and `result`."""

    def __init__(self, thread: threading.Thread) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = thread
        self._done = threading.Event()

    def run(self, function: Function) -> None:
        """Make the call, in the device's thread."""
        try:
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
            if not self._thread.is_alive():
                raise RuntimeError(f"the thread {self._thread.name} died and left a call undone")


class DeviceThreads:
    """The threads. Each makes one call after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[torch.device, tuple[threading.Thread, queue.SimpleQueue[Any]]] = {}

    def start_all(self, functions: list[tuple[torch.device, Function]]) -> list[Call]:
        """Start functions on their devices' threads, all before those of a later `start_all`.

        So calls that wait for each other cannot stand behind calls that wait for them.
        """
        with self._lock:
            return [self._start(device, function) for device, function in functions]

    def _start(self, device: torch.device, function: Function) -> Call:
        thread, calls = self._threads.get(device, (None, None))
        if thread is None or calls is None or not thread.is_alive():  # a fork leaves none alive
            calls = queue.SimpleQueue()
            # A daemon: it waits for work until the process ends, and must not keep it from ending.
            thread = threading.Thread(
                target=_make_calls, args=(calls,), name=f"anyrig {device}", daemon=True
            )
            thread.start()
            self._threads[device] = thread, calls
        call = Call(thread)
        calls.put((call, function))
        return call


@cache
def device_threads() -> DeviceThreads:
    """Return the threads of this process. More would each have their own cuBLAS workspaces."""
    return DeviceThreads()


def _make_calls(calls: queue.SimpleQueue[tuple[Call, Function]]) -> None:
    while True:
        call, function = calls.get()
        call.run(function)
        del call, function  # else the last result would be kept until the next call
