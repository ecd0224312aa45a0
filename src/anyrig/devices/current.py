"""The current device of any kind, in place of calls to `torch.cuda`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .device import Device
from .place import Place, as_devices, as_torch_device

if TYPE_CHECKING:
    import torch


def current_device() -> torch.device:
    """Return the current accelerator with its index, or the CPU if there is none.

    With CUDA, it is the device on which ``torch.empty(n, device="cuda")`` would allocate now.
    """
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def select_device(device: Place) -> None:
    """Make a device the current device of this thread. For the CPU this does nothing."""
    chosen = as_torch_device(device)
    if chosen.type != "cpu" and chosen.index is not None:
        import torch

        torch.accelerator.set_device_index(chosen.index)


@contextmanager
def use_device(device: Place) -> Iterator[torch.device]:
    """Make a device the current device within a ``with`` block, then restore the previous one."""
    before = current_device()
    chosen = as_torch_device(device)
    select_device(chosen)
    try:
        yield chosen
    finally:
        select_device(before)


def device_count() -> int:
    """Return how many accelerators PyTorch sees; 0 on a machine with only a CPU."""
    import torch

    return torch.accelerator.device_count()


def device_name(device: Place | None = None) -> str:
    """Return the name of a device, by default of the current one."""
    return _found(device).name


def device_capability(device: Place | None = None) -> tuple[int, int] | None:
    """Return a device's CUDA compute capability ``(major, minor)``, or None if it has none.

    The device is the current one by default.
    """
    return _found(device).capability


def _found(device: Place | None) -> Device:
    return as_devices(current_device() if device is None else device)[0]
