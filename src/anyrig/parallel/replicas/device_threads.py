"""One thread for each device, shared by all models of the process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any

import torch

Function = Callable[[], Any]
_Calls = queue.SimpleQueue[tuple[Future[Any], Function]]


class DeviceThreads:
    """One thread for each device, which makes its calls in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[torch.device, tuple[threading.Thread, _Calls]] = {}

    def start_all(self, functions: list[tuple[torch.device, Function]]) -> list[Future[Any]]:
        """Queue functions on their threads, together, so that two models cannot deadlock."""
        with self._lock:
            return [self._start(device, function) for device, function in functions]

    def _start(self, device: torch.device, function: Function) -> Future[Any]:
        if device not in self._threads or not self._threads[device][0].is_alive():  # after a fork
            calls: _Calls = queue.SimpleQueue()
            # A daemon, unlike an executor's threads, does not block the end of the process.
            thread = threading.Thread(
                target=_make_calls, args=(calls,), name=f"anyrig {device}", daemon=True
            )
            thread.start()
            self._threads[device] = thread, calls
        call: Future[Any] = Future()
        self._threads[device][1].put((call, function))
        return call


@cache
def device_threads() -> DeviceThreads:
    """Return the threads of this process. PyTorch keeps cuBLAS handles for each thread."""
    return DeviceThreads()


def _make_calls(calls: _Calls) -> None:
    while True:
        call, function = calls.get()
        try:
            call.set_result(function())
        except BaseException as error:  # raised by call.result()
            call.set_exception(error)
        del call, function  # do not keep the result until the next call
