"""Intel GPUs, through `torch.xpu`."""

from __future__ import annotations

from ...hardware import find_spec
from ..device import Device
from ..reading import Reading


class XpuProbe:
    """Devices of `torch.xpu`, which does not report other processes and temperatures."""

    kind = "xpu"

    def find(self) -> tuple[Device, ...]:
        import torch

        if not torch.xpu.is_available():
            return ()
        return tuple(self._device(index) for index in range(torch.xpu.device_count()))

    def _device(self, index: int) -> Device:
        import torch

        try:
            properties = torch.xpu.get_device_properties(index)
        except RuntimeError as error:
            return Device(kind="xpu", index=index, name="unknown", error=str(error))
        return Device(
            kind="xpu",
            index=index,
            name=properties.name,
            total_bytes=properties.total_memory,
            spec=find_spec(properties.name),
        )

    def read(self, device: Device) -> Reading:
        import torch

        if device.index is None:
            return Reading(device, error=device.error)
        try:
            free_bytes, total_bytes = torch.xpu.mem_get_info(device.index)
        except RuntimeError as error:
            return Reading(device, error=str(error))
        own_bytes = torch.xpu.memory_reserved(device.index)
        return Reading(
            device,
            free_bytes=free_bytes,
            own_bytes=own_bytes,
            others_bytes=max(0, total_bytes - free_bytes - own_bytes),
        )

    def peak_bytes(self, device: Device) -> int | None:
        import torch

        return int(torch.xpu.max_memory_allocated(device.index))
