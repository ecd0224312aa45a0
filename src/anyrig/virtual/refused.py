"""What needs a real card: it is there by name, and using it raises what CUDA code would catch.

Left out, each would fail as a missing attribute, which tells a program that PyTorch is broken
rather than that its card is virtual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from .rebinding import bind

_ALLOCATORS = "an allocator of the program's own would need a card's memory"

# Names in torch._C that are called.
_FUNCTIONS = {
    "_cuda_changeCurrentAllocator": _ALLOCATORS,
    "_cuda_customAllocator": _ALLOCATORS,
    "_cuda_cudaHostAllocator": _ALLOCATORS,
    "_cuda_getAllocator": _ALLOCATORS,
    "_nccl_init_rank": "a communicator of NCCL needs cards",
}

# Names in torch._C that are derived from, or made.
_CLASSES = {
    "_CUDAPluggableAllocator": _ALLOCATORS,
    "_CUDAGreenContext": "a part of a card's processors needs a card",
}


def refuse(what: str, reason: str) -> NoReturn:
    """Raise the error of a virtual GPU for `what`."""
    raise RuntimeError(f"CUDA error: {what} is not there on a virtual GPU: {reason}")


def patch() -> None:
    """Put the refusals where PyTorch looks for them."""
    bind({name: _refusing(name, reason) for name, reason in _FUNCTIONS.items()})
    bind({name: _refusing_class(name, reason) for name, reason in _CLASSES.items()})


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
