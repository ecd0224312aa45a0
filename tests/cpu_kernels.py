"""What PyTorch computes on this machine's processor."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

NEEDS_BFLOAT16_LSTM = "oneDNN has an LSTM in bfloat16 for processors with AVX-512 only"


@cache
def has_bfloat16_lstm() -> bool:
    """Whether `nn.LSTM` runs under autocast on the CPU; elsewhere PyTorch raises."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(4, 3)(torch.randn(2, 1, 4))
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        return False
    return True


def need_bfloat16_lstm() -> None:
    """Skip the calling test if the processor has no such kernel."""
    if not has_bfloat16_lstm():
        pytest.skip(NEEDS_BFLOAT16_LSTM)
