"""The memory functions of `torch._C` that `torch.cuda` calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

# Levels of c10's RecordContext. "state" records the stacks of live allocations,
# "alloc" those of all allocations, and "all" those of frees, too.
_STACK_LEVELS = {None: 0, "state": 1, "alloc": 2, "all": 3}


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""

    def snapshot(options: Sequence[Any] | None = None) -> dict[str, Any]:
        first, second, with_traces = (*(options or (0, 0)), True)[:3]
        result: dict[str, Any] = core.memory_snapshot((first, second), with_traces)
        return result

    def set_fraction(fraction: float, device: int) -> None:
        core.set_memory_fraction(fraction, device)

    def record_history(
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = 2**63 - 1,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Sequence[str] = (),
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """Check the options as `torch::cuda::_record_memory_history` does, then start recording."""
        if enabled not in (None, "state", "all"):
            raise RuntimeError("expected state to be 'state', 'all', or None")
        if context not in _STACK_LEVELS:
            raise RuntimeError("expected context to be 'state', 'alloc', 'all', or None")
        if stacks not in ("python", "all"):
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        if not record_cuda:
            return  # the request is for pinned memory only, which has no history here
        core.record_history(
            enabled is not None,
            _STACK_LEVELS[context],
            stacks == "all",
            max_entries if enabled == "all" else 1,
            clear_history,
            list(skip_actions),
        )

    def record_history_legacy(
        enabled: bool,
        record_context: bool = True,
        max_entries: int = 1,
        record_context_of_allocations: bool = False,
        cpp_frames: bool = False,
        clear_history: bool = False,
        *rest: Any,
    ) -> None:
        level = "alloc" if record_context_of_allocations else "state" if record_context else None
        core.record_history(
            enabled, _STACK_LEVELS[level], cpp_frames, max_entries, clear_history, []
        )

    def set_caching(enabled: bool) -> None:
        if not enabled:
            raise RuntimeError(
                "CUDA error: the caching allocator of a virtual GPU cannot be turned off, because "
                "anyrig models the memory of that allocator"
            )

    return {
        "_cuda_memoryStats": core.memory_stats,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_resetPeakMemoryStats": core.reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": core.reset_accumulated,
        "_cuda_emptyCache": core.empty_cache,
        "_accelerator_setAllocatorSettings": core.change_allocator_options,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": core.memory_fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_enable": set_caching,
        "_cuda_cudaCachingAllocator_raw_alloc": core.allocate_raw,
        "_cuda_cudaCachingAllocator_raw_delete": core.free_raw,
        "_cuda_hostMemoryStats": core.pinned_memory_stats,
        "_cuda_resetPeakHostMemoryStats": core.reset_pinned_peaks,
        "_cuda_resetAccumulatedHostMemoryStats": core.reset_pinned_accumulated,
        "_host_emptyCache": core.empty_pinned_cache,
        "_cuda_record_memory_history_legacy": record_history_legacy,
        "_cuda_record_memory_history": record_history,
        "_cuda_isHistoryEnabled": core.history_enabled,
        "_cuda_allocationTraceback": core.allocation_traceback,
        "_cuda_setMemoryMetadata": core.set_memory_metadata,
        "_cuda_getMemoryMetadata": core.memory_metadata,
        "_cuda_memoryMetadataSupported": lambda: True,
        "_cuda_annotateMemory": lambda address, metadata: None,
        "_cuda_attach_out_of_memory_observer": core.add_out_of_memory_observer,
    }
