"""Functions and classes of `torch._C` that need a real GPU and raise a CUDA error here.

Without these stubs, a program would get an AttributeError, which suggests a broken PyTorch rather
than a virtual GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from .rebinding import bind

_ALLOCATORS = "a custom allocator needs the memory of a real GPU"
_KERNELS = "a compiled kernel needs a real GPU"

# Names of functions in torch._C.
_FUNCTIONS = {
    "_cuda_changeCurrentAllocator": _ALLOCATORS,
    "_cuda_customAllocator": _ALLOCATORS,
    "_cuda_cudaHostAllocator": _ALLOCATORS,
    "_cuda_getAllocator": _ALLOCATORS,
    "_cuda_getHipblasltVersion": "hipBLASLt belongs to AMD's GPUs",
    "_nccl_init_rank": "an NCCL communicator needs real GPUs",
}

# Names of classes in torch._C.
_CLASSES = {
    "_CUDAPluggableAllocator": _ALLOCATORS,
    "_CUDAGreenContext": "a partition of multiprocessors needs a real GPU",
    "_FastCudaLauncher": _KERNELS,
}

# Names of modules in torch._C, and of classes that serve as modules. Their functions are refused.
_MODULES = {
    "_StaticCudaLauncher": _KERNELS,
    "_cudnn": "the functions of cuDNN need a real GPU",
    "_cusparselt": "the functions of cuSPARSELt need a real GPU",
}


def refuse(what: str, reason: str) -> NoReturn:
    """Raise the error for `what`, which virtual GPUs do not support because of `reason`.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(f"CUDA error: virtual GPUs do not support {what}: {reason}")


def patch() -> None:
    """Install the stubs in `torch._C`."""
    bind({name: _refusing(name, reason) for name, reason in _FUNCTIONS.items()})
    bind({name: _refusing_class(name, reason) for name, reason in _CLASSES.items()})
    bind({name: _RefusingModule(name, reason) for name, reason in _MODULES.items()})


class _RefusingModule:
    def __init__(self, name: str, reason: str) -> None:
        self.__name__ = name
        self._reason = reason

    def __getattr__(self, function: str) -> Callable[..., NoReturn]:
        if function.startswith("__"):
            raise AttributeError(function)
        return _refusing(f"{self.__name__}.{function}", self._reason)


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
