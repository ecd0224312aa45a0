"""Matrices with 2:4 sparsity in shape-only mode."""

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


def test_pruning_gives_the_sizes_that_a_product_takes() -> None:
    matrix = torch.empty(128, 256, dtype=torch.bfloat16, device="cuda")
    before = torch.cuda.memory_allocated()
    kept, meta, kept_t, meta_t, masks = torch._sparse_semi_structured_tile(matrix)
    assert torch.cuda.memory_allocated() - before == 2 * (32768 + 4096) + 4096
    assert (kept.shape, kept_t.shape, masks.shape) == ((128, 128), (256, 64), (16, 32, 8))
    assert (meta.shape, meta.stride()) == ((128, 2, 8), (2, 1, 256))
    assert meta_t.shape == (256, 2, 4)
    assert torch._sparse_semi_structured_mm(kept_t, meta_t, matrix).shape == (256, 256)
    packed, packed_t = torch._sparse_semi_structured_apply(matrix, masks)
    assert (packed.shape, packed_t.shape) == (kept.shape, kept_t.shape)
    assert torch._sparse_semi_structured_apply_dense(matrix, masks).shape == (128, 256)
    whole, meta, *_ = torch._sparse_semi_structured_tile(matrix, use_cutlass=False)
    assert (whole.shape, meta.shape) == ((128 * 256 * 9 // 16,), (1, 8, 256))


def test_gpus_before_ampere_have_no_sparse_products() -> None:
    kept = torch.empty(64, 64, dtype=torch.float16, device="cuda:8")
    meta = torch.empty(64, 8, dtype=torch.int16, device="cuda:8")
    other = torch.empty(128, 16, dtype=torch.float16, device="cuda:8")
    assert torch.cuda.get_device_capability(8) == (7, 5)
    with pytest.raises(RuntimeError, match=r"only on GPUs with compute capability 8\.x"):
        torch._sparse_semi_structured_mm(kept, meta, other)
    with pytest.raises(RuntimeError, match="architecture mismatch when calling"):
        torch._cslt_compress(other)
