"""Functions called at the same time, each on its device, and what to do when one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from .caller_state import CallerState
from .failure import add_place
from .stopping import Stop, Stopped
from .workers import Call, start_all

_inside = threading.local()


def is_inside() -> bool:
    """Say whether this thread is calling a replica: what is spread in it is called as it is."""
    return getattr(_inside, "value", False)


class SideBySide:
    """Calls functions on devices, one call of `run` after the other."""

    def __init__(self) -> None:
        self._unfinished: list[Call] = []

    def wait(self) -> None:
        """Wait for calls that an interrupted `run` has left behind."""
        while self._unfinished:
            self._unfinished[-1].wait()
            self._unfinished.pop()

    def run(
        self,
        devices: Sequence[torch.device],
        functions: Sequence[Callable[[], Any]],
        given: Sequence[Any],
        rig: Sequence[torch.device],
        stop: Stop,
    ) -> list[Any]:
        """Return the functions' results, in order.

        The function of the rig's first device runs in the caller's thread, the others in those of
        their devices, with the caller's settings.

        Args:
            devices: of each function, its device.
            functions: without arguments.
            given: of each function, what is reported with its error.
            rig: all devices.
            stop: raised when a function fails, so that the others need not finish.

        Raises:
            BaseException: the first function's that failed, with device and shapes in a note.
        """
        state = CallerState(rig)
        tasks = [
            _task(state, device, function, stop)
            for device, function in zip(devices, functions, strict=True)
        ]
        here = [i for i, device in enumerate(devices) if device == rig[0]]
        away = [i for i in range(len(devices)) if i not in here]
        calls = start_all([(devices[i], tasks[i]) for i in away])
        self._unfinished = list(calls)
        results: list[Any] = [None] * len(devices)
        errors: dict[int, BaseException] = {}
        try:
            for i in here:
                try:
                    results[i] = tasks[i]()
                except (Exception, Stopped) as error:  # raised below, once the others ended
                    errors[i] = error
            self.wait()
        except BaseException:  # an interrupt: the others end by themselves, and the next run waits
            stop.raised = True
            raise
        for i, call in zip(away, calls, strict=True):
            results[i] = call.result
            if call.error is not None:
                errors[i] = call.error
        if errors:
            _raise_first(errors, devices, given)
        return results


def _raise_first(
    errors: dict[int, BaseException],
    devices: Sequence[torch.device],
    given: Sequence[Any],
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


def _task(
    state: CallerState, device: torch.device, function: Callable[[], Any], stop: Stop
) -> Callable[[], Any]:
    def call() -> Any:
        before, _inside.value = is_inside(), True
        try:
            return function()
        except BaseException:
            stop.raised = True
            raise
        finally:
            _inside.value = before

    return lambda: state.call(device, call)
