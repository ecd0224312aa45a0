"""`Gpu`, which reads the values that `nvidia-smi` prints for one GPU through pynvml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    used_bytes: int


class Gpu:
    """A GPU of the node, identified by its NVML index."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def read(self, quantity: str, *arguments: object) -> Any:
        """Return the result of ``pynvml.nvmlDeviceGet<quantity>``, or None on an NVMLError."""
        try:
            return getattr(pynvml, f"nvmlDeviceGet{quantity}")(self._handle, *arguments)
        except pynvml.NVMLError:
            return None

    @property
    def name(self) -> str:
        """The driver's name for the GPU."""
        return str(self.read("Name"))

    @property
    def uuid(self) -> str:
        """``GPU-`` and 32 hexadecimal digits."""
        return str(self.read("UUID"))

    @property
    def bus_id(self) -> str:
        """The PCI bus id, such as ``00000000:01:00.0``."""
        return str(self.read("PciInfo").busId)

    @property
    def memory(self) -> Any:
        """The memory in bytes, as the attributes ``total``, ``reserved``, ``free`` and ``used``."""
        return self.read("MemoryInfo", pynvml.nvmlMemory_v2)

    def holders(self) -> list[Holder]:
        """Return the processes that hold memory of this GPU."""
        found = self.read("ComputeRunningProcesses") or []
        return [
            Holder(process.pid, _name_of(process.pid), process.usedGpuMemory) for process in found
        ]

    def matches_id(self, text: str) -> bool:
        """Return whether `text` of ``--id`` is the index, UUID, serial number or PCI bus id."""
        bus_id = self.bus_id.lower()
        return text.lower() in (
            str(self.index),
            self.uuid.lower(),
            self.read("Serial"),
            bus_id,
            bus_id.removeprefix("0000"),
            bus_id.removeprefix("00000000:"),
        )

    def nvlinks_to(self, other: Gpu) -> int:
        """Return the number of NVLinks to `other`, direct or through switches."""
        status = self.read("P2PStatus", other._handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status != pynvml.NVML_P2P_STATUS_OK:
            return 0
        return sum(
            self.read("NvLinkState", link) == 1 for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        )


def gpus() -> Iterator[Gpu]:
    """Yield the GPUs of this node."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        yield Gpu(index)


def cuda_version() -> str:
    """Return the newest CUDA version that the driver supports, such as ``13.0``."""
    version = pynvml.nvmlSystemGetCudaDriverVersion()
    return f"{version // 1000}.{version % 1000 // 10}"


def _name_of(pid: int) -> str:
    try:
        return str(pynvml.nvmlSystemGetProcessName(pid))
    except pynvml.NVMLError:
        return "[Not Found]"
