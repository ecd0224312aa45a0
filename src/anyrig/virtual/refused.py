"""What needs a real card: it is there by name, and using it raises what CUDA code would catch.

Left out, each would fail as a missing attribute, which tells a program that PyTorch is broken
rather than that its card is virtual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from .rebinding import bind

_ALLOCATORS = "an allocator of the program's own would need a card's memory"
_COMPILER = "a kernel compiled at run time needs a card to run on"

# Names in torch._C that are called.
_FUNCTIONS = {
    "_cuda_changeCurrentAllocator": _ALLOCATORS,
    "_cuda_customAllocator": _ALLOCATORS,
    "_cuda_cudaHostAllocator": _ALLOCATORS,
    "_cuda_getAllocator": _ALLOCATORS,
    "_cuda_jiterator_compile_and_launch_kernel": _COMPILER,
    "_nccl_init_rank": "a communicator of NCCL needs cards",
}

# Names in torch._C that are derived from, or made.
_CLASSES = {
    "_cuda_CUDAAllocator": _ALLOCATORS,
    "_CUDAPluggableAllocator": _ALLOCATORS,
    "_CUDAGreenContext": "a part of a card's processors needs a card",
}

# Of the class `_SymmetricMemory`, with PyTorch's words.
_OF_SYMMETRIC_MEMORY = {
    "get_mempool_allocator": "MemPool did not find backend for",
    "empty_strided_p2p": "does not support",
    "rendezvous": "does not support",
}


def refuse(what: str, reason: str) -> NoReturn:
    """Raise the error of a virtual GPU for `what`."""
    raise RuntimeError(f"CUDA error: {what} is not there on a virtual GPU: {reason}")


def patch() -> None:
    """Put the refusals where PyTorch looks for them."""
    bind({name: _refusing(name, reason) for name, reason in _FUNCTIONS.items()})
    bind({name: _refusing_class(name, reason) for name, reason in _CLASSES.items()})
    bindings: Any = torch._C
    bindings._set_cached_tensors_enabled = lambda enabled: None
    _refuse_symmetric_memory()


def _refuse_symmetric_memory() -> None:
    """Have a PyTorch built for CUDA answer as one that has no symmetric memory for cards."""
    module: Any = getattr(torch._C, "_distributed_c10d", None)
    symmetric: Any = getattr(module, "_SymmetricMemory", None)
    if symmetric is None or symmetric.get_backend(torch.device("cuda")) is None:
        return
    get_backend = symmetric.get_backend

    def backend_of(device: torch.device) -> str | None:
        return None if device.type == "cuda" else get_backend(device)

    symmetric.get_backend = staticmethod(backend_of)
    for name, what in _OF_SYMMETRIC_MEMORY.items():
        setattr(symmetric, name, staticmethod(_raising(f"SymmetricMemory {what} device type cuda")))
    module._is_nvshmem_available = lambda: False


def _raising(message: str) -> Callable[..., NoReturn]:
    def raising(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError(message)

    return raising


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
