"""`torch.distributed._symmetric_memory` on virtual devices: the backend "CUDA" and no other.

The allocator, the signals and the operators are in `csrc/symmetric`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn


def patch(core: ModuleType, bindings: Any) -> None:
    """Register the backend, and have a PyTorch built for CUDA know of no other."""
    symmetric: Any = getattr(bindings, "_SymmetricMemory", None)
    if symmetric is None:
        return
    core.install_symmetric_memory()
    # Since 2.11 `empty` opens a pool of the caching allocator that takes its memory from this
    # backend. A pool with an allocator of its own is not modelled, and `empty` does not need it.
    os.environ.setdefault("TORCH_SYMMMEM_IMPLICIT_POOL", "0")
    set_backend = symmetric.set_backend

    def choose(name: str) -> None:
        if name != "CUDA":
            raise RuntimeError(f"SymmetricMemory does not find allocation backend {name}")
        set_backend(name)

    symmetric.set_backend = staticmethod(choose)
    symmetric.get_mempool_allocator = staticmethod(
        _raising("SymmetricMemory MemPool did not find backend for device type cuda")
    )
    for name in ("get_buffer", "get_signal_pad", "get_remote_tensor"):
        if hasattr(symmetric, name):
            setattr(symmetric, name, _keeping_memory(core, getattr(symmetric, name)))
    if hasattr(bindings, "_is_nvshmem_available"):
        bindings._is_nvshmem_available = lambda: False


def _keeping_memory(core: ModuleType, tensor_of: Callable[..., Any]) -> Callable[..., Any]:
    # Without a handle PyTorch's tensor is of memory that nothing keeps: on a card its use is an
    # error of CUDA's, here it would end the process.
    @functools.wraps(tensor_of)
    def keeping(*arguments: Any, **options: Any) -> Any:
        tensor = tensor_of(*arguments, **options)
        core.keep_symmetric_memory_of(tensor)
        return tensor

    return keeping


def _raising(message: str) -> Callable[..., NoReturn]:
    def raising(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError(message)

    return raising
