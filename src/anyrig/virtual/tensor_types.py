"""The old tensor types of CUDA: `torch.cuda.FloatTensor` and its kin.

The CPU build has classes of these names, which refuse to make tensors.
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
    """The class of the types: calling one makes a tensor, `isinstance` looks at its dtype."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype
        )

    def __call__(cls, *arguments: Any, device: Any = None) -> torch.Tensor:  # noqa: D102
        device = "cuda" if device is None else device
        if len(arguments) == 1 and not isinstance(arguments[0], int | torch.Size):
            return torch.tensor(arguments[0], dtype=cls.dtype, device=device)
        return torch.empty(*arguments or (0,), dtype=cls.dtype, device=device)


def patch() -> None:
    """Put types that work where `torch.cuda` has those that do not."""
    cuda: Any = torch.cuda
    for prefix, dtype in _DTYPES.items():
        name = f"{prefix}Tensor"
        attributes = {
            "dtype": dtype,
            "is_cuda": True,
            "is_sparse": False,
            "__module__": "torch.cuda",
        }
        setattr(cuda, name, CudaTensorType(name, (), attributes))
    torch_module: Any = torch
    torch_module.set_default_tensor_type = _setter(torch.set_default_tensor_type)


def _setter(set_elsewhere: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if not name.startswith("torch.cuda."):
            torch.set_default_device(None)
            return set_elsewhere(kind)
        torch.set_default_dtype(_DTYPES[name.removeprefix("torch.cuda.").removesuffix("Tensor")])
        torch.set_default_device("cuda")
        return None

    return set_default_tensor_type
