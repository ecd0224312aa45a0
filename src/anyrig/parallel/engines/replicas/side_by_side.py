"""Calling functions concurrently, each on its device: one thread for each device of the process."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from functools import cache, partial
from typing import Any, NoReturn

import torch

from ....devices.place import Places, as_torch_devices
from ....errors import SpreadError
from ....transfer.location import device_of
from ...device_ids import resolve_devices
from ...notes import add_note, describe_arguments
from .caller_state import CallerState
from .meeting import Meeting, Stopped

_LOOK_SECONDS = 0.2  # an interrupt does not wake a wait

Function = Callable[[], Any]
Call = futures.Future[Any]
_Calls = queue.SimpleQueue[tuple[Call, Function]]


class DeviceThreads:
    """One thread for each device, which makes its calls in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[torch.device, tuple[threading.Thread, _Calls]] = {}

    def start_all(self, calls: Sequence[tuple[torch.device, Call, Function]]) -> None:
        """Queue functions on their threads, together, so that two models cannot deadlock."""
        with self._lock:
            for device, call, function in calls:
                self._start(device, call, function)

    def _start(self, device: torch.device, call: Call, function: Function) -> None:
        if device not in self._threads or not self._threads[device][0].is_alive():  # after a fork
            calls: _Calls = queue.SimpleQueue()
            # A daemon, unlike an executor's threads, does not block the end of the process.
            thread = threading.Thread(
                target=_make_calls, args=(calls,), name=f"anyrig {device}", daemon=True
            )
            thread.start()
            self._threads[device] = thread, calls
        self._threads[device][1].put((call, function))


@cache
def device_threads() -> DeviceThreads:
    """Return the threads of this process. PyTorch keeps cuBLAS handles for each thread."""
    return DeviceThreads()


def _make_calls(calls: _Calls) -> None:
    while True:
        call, function = calls.get()
        try:
            if call.set_running_or_notify_cancel():
                call.set_result(function())
        except BaseException as error:  # raised by call.result()
            call.set_exception(error)
        del call, function  # do not keep the result until the next call


class SideBySide:
    """Calls functions on devices of a rig, the first device's in the caller's thread."""

    def __init__(self, rig: Sequence[torch.device]) -> None:
        self._rig = tuple(rig)
        self._unfinished: list[Call] = []

    def wait(self) -> None:
        """Wait for the calls of an interrupted `run`."""
        while self._unfinished:
            with contextlib.suppress(futures.TimeoutError, futures.CancelledError):
                self._unfinished[-1].exception(_LOOK_SECONDS)
            if self._unfinished[-1].done():
                self._unfinished.pop()

    def run(
        self, meeting: Meeting, functions: Sequence[Callable[..., Any]], given: Sequence[Any]
    ) -> list[Any]:
        """Call one function for each of the meeting's devices, and return the results in order.

        `given` has the ``(args, kwargs)`` of each function. Functions have the caller's thread
        state. The first failure stops the other functions and is raised, with a note of its device
        and the shapes of its arguments.
        """
        state = CallerState(self._rig)
        tasks = [
            partial(state.call, device, partial(meeting.attend, partial(function, *args, **kwargs)))
            for device, function, (args, kwargs) in zip(
                meeting.devices, functions, given, strict=True
            )
        ]
        away = [i for i, device in enumerate(meeting.devices) if device != self._rig[0]]
        results: list[Any] = [None] * len(tasks)
        errors: dict[int, BaseException] = {}
        calls = [(meeting.devices[i], Call(), tasks[i]) for i in away]
        try:
            self._unfinished = [call for _, call, _ in calls]  # before an interrupt can come
            device_threads().start_all(calls)
            for i in sorted({*range(len(tasks))} - {*away}):
                try:
                    results[i] = tasks[i]()
                except (Exception, Stopped) as error:  # raised below, after the others end
                    errors[i] = error
            self.wait()
        except BaseException:  # an interrupt: the others end, and the next run waits for them
            meeting.stop()
            for call in self._unfinished:
                call.cancel()  # if it has not begun
            raise
        for i, (_, call, _) in zip(away, calls, strict=True):
            if (failure := call.exception()) is None:
                results[i] = call.result()
            else:
                errors[i] = failure
        if errors:
            _raise_first(errors, meeting.devices, given)
        return results


def _raise_first(
    errors: dict[int, BaseException], devices: Sequence[torch.device], given: Sequence[Any]
) -> NoReturn:
    # The first failure that is not `Stopped`.
    i = min(errors, key=lambda i: (isinstance(errors[i], Stopped), i))
    error = errors[i]
    shapes = describe_arguments(given[i])
    add_note(error, f"in the replica on {devices[i]}, which was given {shapes}")
    try:
        raise error
    finally:
        # Break the reference cycle of traceback and frame, which would keep the replicas' tensors.
        del error
        errors.clear()


def parallel_apply(
    modules: Sequence[torch.nn.Module],
    inputs: Sequence[Any],
    kwargs: Sequence[Mapping[str, Any]] | None = None,
    devices: Places | None = None,
) -> list[Any]:
    """Return ``[modules[0](*inputs[0], **kwargs[0]), ...]``, all called concurrently.

    The first module runs in the caller's thread, each other in the thread of its device, with the
    caller's gradient mode, autocast, inference mode, streams, and context variables.

    Args:
        modules: as `replicate` returns them, or any callables.
        inputs: for each module, a tuple or list of positional arguments, or the only argument.
        kwargs: for each module, its keyword arguments.
        devices: for each module, its device; by default that of its tensors, or of its input.

    Raises:
        SpreadError: the sequences differ in length, or a device is named twice.
        Exception: the first exception of a module, with its device and shapes in a note.
    """
    named = [{}] * len(modules) if kwargs is None else kwargs
    places: Sequence[torch.device] | None = None if devices is None else as_torch_devices(devices)
    if len({len(modules), len(inputs), len(named), len(modules if places is None else places)}) > 1:
        raise SpreadError(
            f"there are {len(modules)} modules, {len(inputs)} inputs and {len(named)} kwargs"
            f"{'' if places is None else f' and {len(places)} devices'}; give as many of each"
        )
    if not modules:
        return []
    arguments = [tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in inputs]
    given = list(zip(arguments, named, strict=True))
    if places is None:
        places = [_place(module, one) for module, one in zip(modules, given, strict=True)]
    meeting = Meeting(resolve_devices(places), exchanges=False)
    return SideBySide(meeting.devices).run(meeting, modules, given)


def _place(module: Any, given: Any) -> torch.device:
    if isinstance(module, torch.nn.Module):
        for tensor in (*module.parameters(), *module.buffers()):
            return tensor.device
    return device_of(given)
