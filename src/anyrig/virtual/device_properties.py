"""The result of `torch.cuda.get_device_properties` for a virtual GPU."""

from __future__ import annotations

import uuid
from typing import Any

# CUDA C++ programming guide, "technical specifications per compute capability": the most resident
# threads of a multiprocessor, and the most bytes of shared memory that a block can opt in to.
_THREADS_PER_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536}
_SHARED_MEMORY_OPT_IN = {
    (7, 0): 96 * 1024,
    (7, 5): 64 * 1024,
    (8, 0): 163 * 1024,
    (8, 6): 99 * 1024,
    (8, 9): 99 * 1024,
    (9, 0): 227 * 1024,
    (10, 0): 227 * 1024,
    (10, 3): 227 * 1024,
    (12, 0): 99 * 1024,
}


# Properties that the data sheets behind anyrig's hardware facts do not give.
_UNKNOWN = frozenset({"memory_clock_rate", "memory_bus_width"})
# Properties that they give for most GPUs, but not for all.
_OFTEN_KNOWN = frozenset({"L2_cache_size", "clock_rate"})


class DeviceUuid:
    """The UUID of a virtual GPU: 16 bytes, and hexadecimal digits as text."""

    def __init__(self, text: str) -> None:
        # CUDA prints a UUID without the driver's prefix "GPU-".
        self._uuid = uuid.UUID(text.removeprefix("GPU-"))

    @property
    def bytes(self) -> list[int]:
        """The 16 bytes, as a list like PyTorch's."""
        return list(self._uuid.bytes)

    def __str__(self) -> str:
        return str(self._uuid)


class DeviceProperties:
    """The properties of one virtual GPU, under PyTorch's names."""

    warp_size = 32
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 48 * 1024
    max_threads_per_block = 1024
    is_integrated = 0
    is_multi_gpu_board = 0
    pci_domain_id = 0
    pci_device_id = 0

    def __init__(self, facts: Any) -> None:
        self.name: str = facts.name
        self.major: int = facts.capability_major
        self.minor: int = facts.capability_minor
        self.total_memory: int = facts.memory_bytes
        self.multi_processor_count: int = facts.multiprocessors
        self.gcnArchName: str = facts.name  # PyTorch repeats the name where the GPU is not AMD's
        self.uuid = DeviceUuid(facts.uuid)
        if facts.gpu.l2_bytes:
            self.L2_cache_size = int(facts.gpu.l2_bytes)
        if facts.gpu.clock_hertz:
            self.clock_rate = round(facts.gpu.clock_hertz / 1000)  # kHz, as CUDA
        self.pci_bus_id: int = facts.position + 1  # bus 0 belongs to the host
        capability = (self.major, self.minor)
        self.max_threads_per_multi_processor = _THREADS_PER_MULTIPROCESSOR.get(
            capability, 1536 if self.major == 12 else 2048
        )
        self.shared_memory_per_block_optin = _SHARED_MEMORY_OPT_IN.get(capability, 48 * 1024)
        # From Ampere on, CUDA reserves 1 KiB of shared memory for each block.
        self.shared_memory_per_multiprocessor = self.shared_memory_per_block_optin + (
            1024 if self.major >= 8 else 0
        )

    def __getattr__(self, name: str) -> Any:
        if name in _UNKNOWN | _OFTEN_KNOWN:
            raise AttributeError(
                f"virtual GPUs do not know the {name} of {self.name}: the data sheets behind "
                f"anyrig's hardware facts do not give it. Supply a value, as in "
                f"getattr(properties, {name!r}, value)."
            )
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id})"
        )
