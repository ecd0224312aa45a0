"""One card as `nvidia-smi` asks for it, through pynvml. What a card does not tell is None."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a card."""

    pid: int
    name: str
    used_bytes: int


class Card:
    """A card of the node, by its place on the PCI bus."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def ask(self, question: str, *arguments: object) -> Any:
        """Return what pynvml's ``nvmlDeviceGet<question>`` answers, or None."""
        try:
            return getattr(pynvml, f"nvmlDeviceGet{question}")(self._handle, *arguments)
        except pynvml.NVMLError:
            return None

    @property
    def name(self) -> str:
        """The driver's name for it."""
        return str(self.ask("Name"))

    @property
    def uuid(self) -> str:
        """``GPU-`` and 32 digits."""
        return str(self.ask("UUID"))

    @property
    def bus_id(self) -> str:
        """Such as ``00000000:01:00.0``."""
        return str(self.ask("PciInfo").busId)

    @property
    def memory(self) -> Any:
        """Bytes: ``total``, ``reserved``, ``free`` and ``used``."""
        return self.ask("MemoryInfo", pynvml.nvmlMemory_v2)

    def holders(self) -> list[Holder]:
        """The processes that hold memory."""
        found = self.ask("ComputeRunningProcesses") or []
        return [
            Holder(process.pid, _name_of(process.pid), process.usedGpuMemory) for process in found
        ]

    def is_meant_by(self, text: str) -> bool:
        """Whether ``--id`` names it: by index, UUID, serial number or PCI bus id."""
        own = self.bus_id.lower()
        return text.lower() in (
            str(self.index),
            self.uuid.lower(),
            self.ask("Serial"),
            own,
            own.removeprefix("0000"),
            own.removeprefix("00000000:"),
        )

    def nvlinks_to(self, other: Card) -> int:
        """How many NVLinks lead to the other card, directly or through switches."""
        status = self.ask("P2PStatus", other._handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status != pynvml.NVML_P2P_STATUS_OK:
            return 0
        return sum(
            self.ask("NvLinkState", link) == 1 for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        )

    def clock(self, kind: int) -> int | None:
        """Its rate in MHz; of which kind, says nvmlClockType_t."""
        rate: int | None = self.ask("ClockInfo", kind)
        return rate


def cards() -> Iterator[Card]:
    """Yield the cards of this node."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        yield Card(index)


def cuda_version() -> str:
    """The newest CUDA that the driver knows, as ``13.0``."""
    version = pynvml.nvmlSystemGetCudaDriverVersion()
    return f"{version // 1000}.{version % 1000 // 10}"


def _name_of(pid: int) -> str:
    try:
        return str(pynvml.nvmlSystemGetProcessName(pid))
    except pynvml.NVMLError:
        return "[Not Found]"
