"""The legacy tensor types of CUDA, such as `torch.cuda.FloatTensor`, dense and sparse.

A CPU build has classes with these names, but they cannot create tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}


class CudaTensorType(type):
    """The metaclass of the types: a call creates a tensor, and `isinstance` checks the dtype."""

    dtype: torch.dtype
    layout: torch.layout

    # The C-level name includes the module, because `Tensor.type` reads only that name.
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return cls.__qualname__

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.is_cuda
            and instance.dtype == cls.dtype
            and instance.layout == cls.layout
        )

    def __call__(cls, *arguments: Any, **named: Any) -> torch.Tensor:  # noqa: D102
        # `Tensor.new` interprets its arguments as the constructors of the legacy types do.
        shape = (0, 0) if cls.layout is torch.sparse_coo else (0,)
        empty = torch.empty(shape, dtype=cls.dtype, layout=cls.layout, device="cuda")
        return empty.new(*arguments, **named)


def patch() -> None:
    """Replace the tensor types of `torch.cuda` with types that can create tensors."""
    for prefix, dtype in _DTYPES.items():
        for module, layout in (
            ("torch.cuda", torch.strided),
            ("torch.cuda.sparse", torch.sparse_coo),
        ):
            place: Any = torch.cuda if layout is torch.strided else torch.cuda.sparse
            name = f"{prefix}Tensor"
            if not hasattr(place, name):
                continue
            attributes = {
                "dtype": dtype,
                "layout": layout,
                "is_cuda": True,
                "is_sparse": layout is torch.sparse_coo,
                "__module__": module,
                "__qualname__": name,
            }
            setattr(place, name, CudaTensorType(f"{module}.{name}", (), attributes))
    torch_module: Any = torch
    torch_module.set_default_tensor_type = _setter(torch.set_default_tensor_type)


def _setter(original_set: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        _restore_tensor_constructor()
        if not name.startswith("torch.cuda."):
            torch.set_default_device(None)
            return original_set(kind)
        torch.set_default_dtype(_DTYPES[name.removeprefix("torch.cuda.").removesuffix("Tensor")])
        torch.set_default_device("cuda")
        _make_tensor_constructor_use_cuda()
        return None

    return set_default_tensor_type


def _make_tensor_constructor_use_cuda() -> None:
    """Make `torch.Tensor(…)`, which ignores the default device, create CUDA tensors."""
    tensor_class: Any = torch.Tensor
    original_new = torch.Tensor.__new__

    def new(cls: type, *arguments: Any, **named: Any) -> Any:
        if cls is not torch.Tensor:
            return original_new(cls, *arguments, **named)
        # Raises, as in PyTorch, if another device is named.
        return torch.empty(0, device="cuda").new(*arguments, **named)

    tensor_class.__new__ = new


def _restore_tensor_constructor() -> None:
    # Removed as soon as possible: torch.compile guards on `torch.Tensor.__new__`.
    if "__new__" in vars(torch.Tensor):
        tensor_class: Any = torch.Tensor
        del tensor_class.__new__
