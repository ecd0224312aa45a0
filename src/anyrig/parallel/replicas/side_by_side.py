"""Functions called at the same time, each on its device, and what to do when one fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent import futures
from functools import partial
from typing import Any, NoReturn

import torch

from .caller_state import CallerState
from .device_threads import device_threads
from .failure import add_place
from .meeting import Meeting, Stopped

_LOOK_SECONDS = 0.2


class SideBySide:
    """Calls functions on devices of a rig, those of the first one in the caller's thread."""

    def __init__(self, rig: Sequence[torch.device]) -> None:
        self._rig = tuple(rig)
        self._unfinished: list[futures.Future[Any]] = []

    def wait(self) -> None:
        """Wait for calls that an interrupted `run` has left behind."""
        while self._unfinished:
            with contextlib.suppress(futures.TimeoutError):
                # Now and then, as an interrupt that another thread took wakes nobody.
                self._unfinished[-1].exception(_LOOK_SECONDS)
                self._unfinished.pop()

    def run(
        self, meeting: Meeting, functions: Sequence[Callable[[], Any]], given: Sequence[Any]
    ) -> list[Any]:
        """Return the results of one function for each of the meeting's devices, in order.

        They are called with the caller's settings. The first that fails stops the others. `given`
        is what is reported with each one's error.

        Raises:
            BaseException: the first function's that failed, with device and shapes in a note.
        """
        state = CallerState(self._rig)
        tasks = [
            partial(state.call, device, partial(meeting.attend, function))
            for device, function in zip(meeting.devices, functions, strict=True)
        ]
        away = [i for i, device in enumerate(meeting.devices) if device != self._rig[0]]
        results: list[Any] = [None] * len(tasks)
        errors: dict[int, BaseException] = {}
        try:
            calls = device_threads().start_all([(meeting.devices[i], tasks[i]) for i in away])
            self._unfinished = list(calls)
            for i in sorted({*range(len(tasks))} - {*away}):
                try:
                    results[i] = tasks[i]()
                except (Exception, Stopped) as error:  # raised below, once the others ended
                    errors[i] = error
            self.wait()
        except BaseException:  # an interrupt: the others end by themselves, and the next run waits
            meeting.stop()
            raise
        for i, call in zip(away, calls, strict=True):
            failure = call.exception()
            if failure is None:
                results[i] = call.result()
            else:
                errors[i] = failure
        if errors:
            _raise_first(errors, meeting.devices, given)
        return results


def _raise_first(
    errors: dict[int, BaseException], devices: Sequence[torch.device], given: Sequence[Any]
) -> NoReturn:
    # The first that failed by itself, not because it was stopped.
    i = min(errors, key=lambda i: (isinstance(errors[i], Stopped), i))
    error = errors[i]
    add_place(error, devices[i], given[i])
    try:
        raise error
    finally:
        # The traceback refers to this frame, and would keep in a circle what replicas computed.
        del error
        errors.clear()
