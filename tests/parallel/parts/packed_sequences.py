"""Packed sequences of given lengths."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence


def pack(lengths: list[int], enforce_sorted: bool, device: str = "cpu") -> PackedSequence:
    sequences = [torch.randn(length, 2, dtype=torch.float64) for length in lengths]
    return pack_sequence(sequences, enforce_sorted).to(device)
