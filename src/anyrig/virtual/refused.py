"""What needs a real card: it is there by name, and using it raises what CUDA code would catch.

Left out, each would fail as a missing attribute, which tells a program that PyTorch is broken
rather than that its card is virtual.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NoReturn

import torch

_GRAPHS = "a CUDA graph is a recording of kernels, and a virtual GPU runs none"
_POOLS = "a memory pool of its own is not modelled"
_ALLOCATORS = "an allocator of the program's own would need a card's memory"
_COMPILER = "a kernel compiled at run time needs a card to run on"

# Names in torch._C that are called.
_FUNCTIONS = {
    "_graph_pool_handle": _GRAPHS,
    "_cuda_getCheckpointState": _GRAPHS,
    "_cuda_setCheckpointPoolState": _GRAPHS,
    "_cuda_checkPoolLiveAllocations": _GRAPHS,
    "_cuda_beginAllocateCurrentStreamToPool": _POOLS,
    "_cuda_beginAllocateCurrentThreadToPool": _POOLS,
    "_cuda_beginAllocateToPool": _POOLS,
    "_cuda_endAllocateToPool": _POOLS,
    "_cuda_releasePool": _POOLS,
    "_cuda_changeCurrentAllocator": _ALLOCATORS,
    "_cuda_customAllocator": _ALLOCATORS,
    "_cuda_cudaHostAllocator": _ALLOCATORS,
    "_cuda_getAllocator": _ALLOCATORS,
    "_cuda_jiterator_compile_and_launch_kernel": _COMPILER,
    "_nccl_init_rank": "a communicator of NCCL needs cards",
}

# Names in torch._C that are derived from, or made.
_CLASSES = {
    "_CUDAGraph": _GRAPHS,
    "_cuda_CUDAAllocator_AllocatorState": _GRAPHS,
    "_MemPool": _POOLS,
    "_cuda_CUDAAllocator": _ALLOCATORS,
    "_CUDAGreenContext": "a part of a card's processors needs a card",
}

# Modules that took those names while torch was imported, and the classes there that derive from
# them.
_HOLDERS = {
    "torch.cuda.graphs": {"CUDAGraph": "_CUDAGraph"},
    "torch.cuda.memory": {"MemPool": "_MemPool"},
}


def refuse(what: str, reason: str) -> NoReturn:
    """Raise the error of a virtual GPU for `what`."""
    raise RuntimeError(f"CUDA error: {what} is not there on a virtual GPU: {reason}")


def patch() -> None:
    """Put the refusals where PyTorch looks for them."""
    bindings: Any = torch._C
    for name, reason in _FUNCTIONS.items():
        setattr(bindings, name, _refusing(name, reason))
    for name, reason in _CLASSES.items():
        setattr(bindings, name, _refusing_class(name, reason))
    bindings._cuda_isHistoryEnabled = lambda: False
    bindings._set_cached_tensors_enabled = lambda enabled: None
    for module_name, derived in _HOLDERS.items():
        module = importlib.import_module(module_name)
        for name in (*_FUNCTIONS, *_CLASSES, "_cuda_isCurrentStreamCapturing"):
            if hasattr(module, name):
                setattr(module, name, getattr(bindings, name))
        for name, base in derived.items():
            getattr(module, name).__new__ = _refusing_new(name, _CLASSES[base])


def _refusing(name: str, reason: str) -> Callable[..., NoReturn]:
    def refusing(*arguments: object, **options: object) -> NoReturn:
        refuse(name, reason)

    return refusing


def _refusing_new(name: str, reason: str) -> Callable[..., NoReturn]:
    def new(cls: type, *arguments: object, **options: object) -> NoReturn:
        refuse(name, reason)

    return new


def _refusing_class(name: str, reason: str) -> type:
    return type(name, (), {"__new__": _refusing_new(name, reason)})
