"""The functions of `torch._C` behind `torch.cuda` that concern memory."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""

    def snapshot(_options: object = None) -> dict[str, Any]:
        devices = range(core.device_count())
        return {
            "segments": [entry for index in devices for entry in core.memory_snapshot(index)],
            "device_traces": [[] for _ in devices],
            "external_annotations": [],
            "allocator_settings": {},
        }

    def set_fraction(fraction: float, device: int) -> None:
        core.set_memory_fraction(fraction, device)

    return {
        "_cuda_memoryStats": core.memory_stats,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_resetPeakMemoryStats": core.reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": core.reset_accumulated,
        "_cuda_emptyCache": core.empty_cache,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": core.memory_fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_raw_alloc": core.allocate_raw,
        "_cuda_cudaCachingAllocator_raw_delete": core.free_raw,
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetPeakHostMemoryStats": lambda: None,
        "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
        "_cuda_record_memory_history_legacy": lambda *arguments: None,
        "_cuda_record_memory_history": lambda *arguments: None,
        "_cuda_attach_out_of_memory_observer": core.add_out_of_memory_observer,
    }
