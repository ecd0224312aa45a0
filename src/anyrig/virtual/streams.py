"""The base classes of `torch.cuda.Stream` and `torch.cuda.Event`.

`torch.Stream` and `torch.Event` do the work through the device guard. The classes here add the
members that only CUDA's classes have.
"""

from __future__ import annotations

import importlib
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_event

from .rebinding import replace_in_torch

_CUDA = 1  # c10/core/DeviceType.h

_C: Any = torch._C


class CudaStreamBase(torch.Stream):
    """The base class of `torch.cuda.Stream`."""

    def __new__(  # noqa: D102
        cls,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
        stream_ptr: int | None = None,
    ) -> CudaStreamBase:
        if stream_ptr is not None:
            stream_id, device_index, _ = _C._cuda_getStreamFromExternal(
                stream_ptr, torch.cuda.current_device()
            )
        if stream_id is None or device_index is None:
            device_index = torch.cuda.current_device()
            stream_id, *_ = _C._cuda_getStreamFromPool(device_index, priority)
        return super().__new__(
            cls,
            stream_id=stream_id,
            device_index=device_index,
            device_type=_CUDA,
        )

    @property
    def cuda_stream(self) -> int:
        """A number in place of the stream's address: unique in the process, 0 for default streams.

        CUDA's default streams have the address 0, too.
        """
        return int(_C._cuda_streamHandle(self.stream_id, self.device_index))

    @property
    def priority(self) -> int:
        """The priority; a lower number means a higher priority."""
        return int(_C._cuda_streamPriority(self.stream_id, self.device_index))

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority."""
        return 0, _C._cuda_highestStreamPriority


def _refuse_to_create(*_: object) -> None:
    """Raise CUDA's error for an event of several processes with times, created when recorded."""
    error: Any = torch.AcceleratorError(
        "CUDA error: invalid argument\nSearch for `cudaErrorInvalidValue' in "
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
        "information."
    )
    error.error_code = 1
    raise error


class CudaEventBase(torch.Event):
    """The base class of `torch.cuda.Event`."""

    def __new__(  # noqa: D102
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> CudaEventBase:
        event = super().__new__(
            cls,
            device="cuda",
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )
        event._enable_timing = enable_timing
        event._is_shared = interprocess and not enable_timing
        if interprocess and enable_timing:
            event.__dict__["record"] = _refuse_to_create
        return event

    _enable_timing: bool
    _is_shared: bool

    def elapsed_time(self, end_event: Any) -> float:
        """Return the time from this event to `end_event` on the virtual clock, in milliseconds.

        Raises:
            ValueError: an event was made without `enable_timing` or has not been recorded. The
                messages are those of `at::cuda::CUDAEvent`.
        """
        if not (self._enable_timing and end_event._enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self.cuda_event and end_event.cuda_event):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float(_C._cuda_elapsedMilliseconds(self.cuda_event, end_event.cuda_event))

    def ipc_handle(self) -> bytes:
        """Return a handle for `from_ipc_handle`, valid while this process holds the event.

        Raises:
            torch.AcceleratorError: "invalid resource handle": the event was made without
                `interprocess=True` or by another process. "invalid argument": with timing.
        """
        was_recorded = bool(self.event_id)
        if not was_recorded:
            self.record(torch.cuda.current_stream())  # creates the event
        process, file = _C._cuda_shareEvent(self.event_id, was_recorded, self._is_shared)
        return f"{process}:{file}".encode()

    @classmethod
    def from_ipc_handle(cls, device: torch.device, handle: bytes) -> CudaEventBase:
        """Return an event of this process that refers to another process's event."""
        event = cls(interprocess=True)
        event.record(torch.cuda.current_stream(device))  # creates the event
        process, file = handle.decode().split(":")
        _C._cuda_openEvent(event.event_id, int(process), int(file))
        return event

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """The device on which the event was recorded, or None before the first record."""
        return super().device if self.event_id else None

    @property
    def cuda_event(self) -> int:
        """The address of the event, or 0 before the first record."""
        return self.event_id


def bindings(core: ModuleType) -> dict[str, Any]:
    """Return the functions and classes by their names in `torch._C`."""

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        core.set_stream(stream_id, device_index)

    def current_raw_stream(device: int) -> int:
        return int(core.stream_handle(core.current_stream(device)[0], device))

    return {
        "_cuda_getCurrentStream": core.current_stream,
        "_cuda_getDefaultStream": core.default_stream,
        "_cuda_getStreamFromPool": core.stream_from_pool,
        "_cuda_getStreamFromExternal": core.stream_of_handle,
        "_cuda_setStream": set_stream,
        "_cuda_getCurrentRawStream": current_raw_stream,
        "_cuda_streamHandle": core.stream_handle,
        "_cuda_streamPriority": core.stream_priority,
        "_cuda_highestStreamPriority": core.highest_priority,
        "_cuda_elapsedMilliseconds": core.elapsed_milliseconds,
        "_cuda_shareEvent": core.share_event,
        "_cuda_openEvent": core.open_event,
        "_CudaStreamBase": CudaStreamBase,
        "_CudaEventBase": CudaEventBase,
    }


def patch() -> None:
    """Redefine `torch.cuda.Stream`, `ExternalStream` and `Event` on the base classes here."""
    streams = importlib.import_module("torch.cuda.streams")
    old = {name: getattr(streams, name) for name in ("Stream", "ExternalStream", "Event")}
    importlib.reload(streams)
    replace_in_torch(old, vars(streams))
    # PyTorch registered the reducer for the old class, and picklers look up the exact class.
    ForkingPickler.register(streams.Event, _reduce_event)


def _reduce_event(event: Any) -> tuple[Any, ...]:
    # Replaces PyTorch's reducer, whose name varies between versions. `ipc_handle` comes first
    # because it records the event if necessary, and only then does the event have a device.
    handle = event.ipc_handle()
    return rebuild_event, (event.device, handle)
