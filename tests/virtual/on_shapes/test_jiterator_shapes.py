"""A `torch.cuda.jiterator` kernel in shape-only mode: its results have the layout of a sum."""

from __future__ import annotations

import torch
from torch.cuda.jiterator import _create_jit_fn


def test_results_are_laid_out_as_a_sum() -> None:
    kernel = _create_jit_fn("template <typename T> T never_compiled(T x, T y) { return oops; }")
    x, y = torch.ones(300, 4, device="cuda").half().t(), torch.ones(4, 1, device="cuda")
    before = torch.cuda.memory_allocated()
    result = kernel(x, y)
    allocated = torch.cuda.memory_allocated() - before
    expected = x + y
    assert (result.shape, result.stride(), result.dtype) == (
        expected.shape,
        expected.stride(),
        expected.dtype,
    )
    assert torch.cuda.memory_allocated() - before == 2 * allocated
