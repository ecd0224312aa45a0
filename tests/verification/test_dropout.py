"""Dropout is off while a training is verified, and nothing else changes."""

from __future__ import annotations

import torch
from torch import nn

from anyrig.verification.dropout import DropoutOff


def test_attention_by_positions_is_what_it_is_without_dropout() -> None:
    one = torch.randn(2, 1, 4, 8, dtype=torch.float64)
    expected = nn.functional.scaled_dot_product_attention(one, one, one)
    off = DropoutOff()
    off.start()
    try:
        attend = nn.functional.scaled_dot_product_attention
        found = [attend(one, one, one, None, 0.5), attend(one, one, one, None, 0.5, False)]
    finally:
        off.stop()
    assert all(each.equal(expected) for each in found)
    assert len(off.take_states()) == 2
