"""One device: the facts that do not change. A `Reading` has its state at a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import DeviceFailedError
from ..hardware import Spec
from ..units import format_bytes

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Device:
    """An accelerator or the CPU. Unknown values are None.

    Attributes:
        kind: PyTorch's device type: ``"cuda"``, ``"xpu"``, ``"mps"`` or ``"cpu"``.
        index: PyTorch's index within the kind; None for the CPU and for a device PyTorch cannot
            reach. It changes with ``CUDA_VISIBLE_DEVICES``; the UUID does not.
        name: the name that the driver reports.
        uuid: the UUID with its prefix, ``"GPU-8932f937-…"`` or ``"MIG-…"``.
        pci_bus_id: the PCI address, such as ``"00000000:3B:00.0"``.
        capability: compute capability ``(major, minor)``.
        total_bytes: memory of the device; for the CPU, what this process may use of the host's.
        spec: published facts, if this exact name is known.
        error: why the device cannot be used, as the driver or PyTorch reports it.
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
        """The device as text for `Rig.parse` and `torch.device`: ``"cuda:1"``, ``"cpu"``."""
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
                f"{self} cannot be used: {self.error}. `anyrig devices` lists the usable devices"
            )

    def __repr__(self) -> str:
        error = "" if self.error is None else f", cannot be used: {self.error}"
        return f"<Device {self.text}: {self.name}, {format_bytes(self.total_bytes)}{error}>"

    def __str__(self) -> str:
        identity = f", {self.uuid}" if self.uuid and self.index is None else ""
        return f"{self.text} ({self.name}{identity})"
