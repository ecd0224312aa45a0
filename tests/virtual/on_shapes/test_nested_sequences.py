"""Nested tensors of layout strided without data: their sizes are on the host."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def sequences(dtype: torch.dtype) -> Tensor:
    parts = [torch.zeros(2, length, 16) for length in (3, 5)]
    return torch.nested.nested_tensor(parts, device="cuda", dtype=dtype, requires_grad=True)


def test_operators_on_the_parts() -> None:
    tensor = sequences(torch.float32)
    with torch.no_grad():
        result = functional.relu(tensor).clone().transpose(1, 2).contiguous()
        assert result._nested_tensor_size().tolist() == [[3, 2, 16], [5, 2, 16]]
        assert torch.nested.to_padded_tensor(result, 0.0).shape == (2, 5, 2, 16)
        products = (tensor @ tensor.transpose(2, 3)).softmax(-1)
        assert products._nested_tensor_size().tolist() == [[2, 3, 3], [2, 5, 5]]


def test_padding_is_left_out() -> None:
    sizes = torch.tensor([[3, 16], [5, 16]])
    tensor = torch._nested_from_padded(torch.empty(2, 6, 16, device="cuda"), sizes)
    assert tensor.values().shape == (8 * 16,)


def test_attention() -> None:
    query, key, value = (sequences(torch.float16) for _ in range(3))
    result = functional.scaled_dot_product_attention(query, key, value)
    torch.nested.to_padded_tensor(result.transpose(1, 2).contiguous(), 0.0).sum().backward()
    assert query.grad is not None
    assert query.grad._nested_tensor_size().tolist() == [[2, 3, 16], [2, 5, 16]]
