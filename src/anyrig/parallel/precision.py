"""The option `precision=` of `spread`: forward and loss under autocast on all devices."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from ..errors import SpreadError

_LOW = (torch.bfloat16, torch.float16)


def read_precision(
    precision: str | torch.dtype | None, devices: Sequence[torch.device]
) -> torch.dtype | None:
    """Return the dtype of autocast that `precision` names.

    Raise SpreadError if it names none, or a device does not compute in it.
    """
    if precision is None:
        return None
    dtype = precision
    if isinstance(precision, str):
        dtype = getattr(torch, precision.removeprefix("torch."), precision)
    if not isinstance(dtype, torch.dtype) or dtype not in _LOW:
        raise SpreadError(
            f'precision={precision!r} is not a dtype of autocast; use "bfloat16" or "float16", '
            "or leave it out to compute in the dtype of the parameters"
        )
    for device in devices:
        if (reason := _find_obstacle(device, dtype)) is not None:
            other = "float16" if dtype is torch.bfloat16 else "bfloat16"
            raise SpreadError(
                f"precision={precision!r} needs a device that computes in {dtype}, but {device} "
                f'does not: {reason}. Use precision="{other}", or leave out this device'
            )
    return dtype


def _find_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a device does not compute in `dtype`, or None."""
    if device.type in ("cuda", "xpu") and dtype is torch.bfloat16:
        backend = torch.cuda if device.type == "cuda" else torch.xpu
        with backend.device(device):
            # PyTorch emulates bfloat16 on older GPUs, more slowly than float32.
            if not backend.is_bf16_supported(including_emulation=False):
                return "its hardware has no bfloat16"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # autocast warns of a dtype and disables itself
            torch.autocast(device.type, dtype)
    except (RuntimeError, UserWarning) as error:
        return " ".join(str(error).split())
    return None


def explain_precision(precision: torch.dtype) -> str:
    """Return what the option does, for `explain`."""
    scaler = "; scale the loss with a torch.amp.GradScaler"
    return (
        f"forward and loss under autocast in {str(precision).removeprefix('torch.')}, parameters, "
        f"gradients and reduction in their own dtype{scaler if precision is torch.float16 else ''}"
    )
