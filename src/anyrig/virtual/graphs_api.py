"""The classes under `torch.cuda.CUDAGraph` and `torch.cuda.MemPool`, and their functions."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from .rebinding import replace_in_torch

# Classes of PyTorch that derive from those bound here, and the modules that define them.
_DERIVED = {"torch.cuda.graphs": "CUDAGraph", "torch.cuda.memory": "MemPool"}


def bindings(core: ModuleType) -> dict[str, Any]:
    """Return the functions and classes by their names in `torch._C`."""
    return {
        "_CUDAGraph": core.CudaGraph,
        "_MemPool": core.MemoryPool,
        "_cuda_isCurrentStreamCapturing": core.is_capturing,
        "_graph_pool_handle": lambda: core.new_pool_id(True),
        "_cuda_beginAllocateToPool": core.begin_pool,
        "_cuda_beginAllocateCurrentStreamToPool": core.begin_pool_of_stream,
        "_cuda_beginAllocateCurrentThreadToPool": core.begin_pool_of_thread,
        "_cuda_endAllocateToPool": core.end_pool,
        "_cuda_releasePool": core.release_pool,
    }


def patch() -> None:
    """Derive PyTorch's classes from those here; its modules took other bases when they began."""
    for module_name, name in _DERIVED.items():
        module = importlib.import_module(module_name)
        before = dict(vars(module))
        importlib.reload(module)
        derived = {name: getattr(module, name)}
        vars(module).update(before)  # the rest stays what others took of it
        replace_in_torch({name: before[name]}, derived)
