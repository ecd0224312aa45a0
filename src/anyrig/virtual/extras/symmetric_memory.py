"""`torch.distributed._symmetric_memory` on virtual GPUs, with the backend "CUDA" only.

The allocator, the signals and the operators are in `csrc/extras/symmetric`.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn


def patch(core: ModuleType) -> None:
    """Register the backend, and make a CUDA build of PyTorch reject all other backends."""
    if not hasattr(core, "install_symmetric_memory"):
        return  # PyTorch was built without torch.distributed or without gloo
    bindings: Any = importlib.import_module("torch._C._distributed_c10d")
    symmetric: Any = getattr(bindings, "_SymmetricMemory", None)
    if symmetric is None:
        return
    core.install_symmetric_memory()
    # Since PyTorch 2.11, `empty` opens a pool of the caching allocator whose memory comes from this
    # backend. The allocator's model has no such pools, and `empty` works without one.
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
    # PyTorch's tensor does not own its memory. Using the tensor after the handle is gone is a
    # CUDA error on a real GPU but would crash the process here, so the tensor keeps the memory.
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
