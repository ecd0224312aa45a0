"""One device: what it is. What it is doing at a moment is a `Reading`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import DeviceFailedError, DeviceTextError
from ..hardware import Spec
from ..units import format_bytes

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Device:
    """An accelerator or the CPU, as it was found. What is unknown is None.

    Attributes:
        kind: PyTorch's device type: ``"cuda"``, ``"xpu"``, ``"mps"`` or ``"cpu"``.
        index: PyTorch's index within the kind; None for the CPU and for a device PyTorch cannot
            reach. It changes with ``CUDA_VISIBLE_DEVICES``; the UUID does not.
        name: as the driver reports it.
        uuid: with its prefix, ``"GPU-8932f937-…"`` or ``"MIG-…"``.
        pci_bus_id: ``"00000000:3B:00.0"``.
        capability: compute capability ``(major, minor)``.
        total_bytes: memory of the device; for the CPU, what this process may use of the host's.
        spec: published facts, if this exact name is known.
        error: why the device cannot be used, in the words of whoever said so.
    """

    kind: str
    index: int | None
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    capability: tuple[int, int] | None = None
    total_bytes: int | None = None
    spec: Spec | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """What `Rig.parse` and `torch.device` read: ``"cuda:1"``, ``"cpu"``."""
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    @property
    def torch_device(self) -> torch.device:
        """The device as PyTorch knows it.

        Raises:
            DeviceFailedError: the device cannot be used; the message says why.
        """
        self.require_usable()
        import torch

        return torch.device(self.text)

    def require_usable(self) -> None:
        """Raise DeviceFailedError if the device cannot be used; the message says why."""
        if self.error is not None:
            raise DeviceFailedError(
                f"{self} cannot be used: {self.error}. `anyrig devices` lists those that can"
            )

    def __repr__(self) -> str:
        error = "" if self.error is None else f", cannot be used: {self.error}"
        return f"<Device {self.text}: {self.name}, {format_bytes(self.total_bytes)}{error}>"

    def __str__(self) -> str:
        identity = f", {self.uuid}" if self.uuid and self.index is None else ""
        return f"{self.text} ({self.name}{identity})"


def as_torch_device(device: Device | torch.device | str | int) -> torch.device:
    """Return the PyTorch device that any of the usual spellings names.

    Args:
        device: a `Device`, a `torch.device`, a text such as ``"cuda:1"``, or the index of an
            accelerator.

    Raises:
        DeviceTextError: PyTorch cannot read the text.
        DeviceFailedError: the `Device` cannot be used.
    """
    if isinstance(device, Device):
        return device.torch_device
    import torch

    if isinstance(device, int) and not isinstance(device, bool):
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            raise DeviceTextError(
                f"device {device} is the index of an accelerator, and this machine has none; "
                "use 'cpu', or see `anyrig devices`"
            )
        return torch.device(accelerator.type, device)
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise DeviceTextError(f"PyTorch cannot read {device!r} as a device: {error}") from None
