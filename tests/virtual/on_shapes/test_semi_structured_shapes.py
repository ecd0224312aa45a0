"""Matrices that keep two numbers of every four, without data."""

from __future__ import annotations

import pytest
import torch
from torch.sparse._semi_structured_conversions import sparse_semi_structured_from_dense_cutlass

from anyrig.virtual import clock


def flops() -> float:
    return clock().devices[0].flops


def test_a_product_takes_half_the_time_of_a_dense_one() -> None:
    matrix = torch.empty(128, 256, dtype=torch.float16, device="cuda")
    other = torch.empty(256, 64, dtype=torch.float16, device="cuda")
    kept, meta = sparse_semi_structured_from_dense_cutlass(matrix)
    compressed = torch._cslt_compress(matrix)
    bias = torch.empty(128, dtype=torch.float16, device="cuda")
    assert compressed.shape == (128, 144)
    for call in (
        lambda: torch._sparse_semi_structured_mm(kept, meta, other),
        lambda: torch._sparse_semi_structured_addmm(bias, kept, meta, other),
        lambda: torch._cslt_sparse_mm(compressed, other),
    ):
        before = flops()
        result = call()
        assert result.shape == (128, 64)
        assert flops() - before == pytest.approx(128 * 256 * 64)
