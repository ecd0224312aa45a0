"""The dtype that mixed precision has on a GPU, and the line of code that turns it on."""

from __future__ import annotations

import torch

# Compute capability. GPUs below it have matrix units for float16 only, or none.
_FIRST_WITH_BFLOAT16 = (8, 0)


def half_dtype(device: torch.device | None = None) -> torch.dtype:
    """Return the dtype of mixed precision on a device; None for the current CUDA device."""
    if device is not None and device.type != "cuda":
        return torch.bfloat16
    has_bfloat16 = torch.cuda.get_device_capability(device) >= _FIRST_WITH_BFLOAT16
    return torch.bfloat16 if has_bfloat16 else torch.float16


def advise_autocast(half: torch.dtype) -> str:
    """Return how to call a model in mixed precision, in one line.

    Small gradients would be 0 in float16, so the loss is scaled. In bfloat16 they are not.
    """
    advice = f'with torch.autocast("cuda", {half}): output = model(…)'
    if half == torch.float16:
        advice += '; train with torch.amp.GradScaler("cuda")'
    return advice
