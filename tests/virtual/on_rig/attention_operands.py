"""Operands of attention, and a comparison with the plain formula in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten

EFFICIENT, FLASH = SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION
CUDNN, MATH = SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2}
FUSED = [(EFFICIENT, torch.float32), (FLASH, torch.float16), (CUDNN, torch.float16)]


def operands(
    dtype: torch.dtype = torch.float32, key_heads: int = 4, key_tokens: int = 24
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(2, 4, 24, 16), (2, key_heads, key_tokens, 16), (2, key_heads, key_tokens, 16)]
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]


def compare(call: Callable[..., torch.Tensor], tensors: list[torch.Tensor]) -> None:
    """Run `call` on the GPU and, in float64, on the CPU; compare results and gradients."""
    exact = [tensor.detach().cpu().double().requires_grad_() for tensor in tensors]
    with sdpa_kernel(MATH):
        expected_output = call(*exact)
    output = call(*tensors)
    gradient = torch.randn(expected_output.shape, dtype=torch.float64)
    output.backward(gradient.to(output))
    expected_output.backward(gradient)
    tolerance = {"atol": TOLERANCE[tensors[0].dtype], "rtol": TOLERANCE[tensors[0].dtype]}
    torch.testing.assert_close(output.cpu().double(), expected_output, **tolerance)
    for tensor, other in zip(tensors, exact, strict=True):
        assert tensor.grad is not None
        torch.testing.assert_close(tensor.grad.cpu().double(), other.grad, **tolerance)


def attention_with_dropout_mask(
    tensors: list[torch.Tensor], kept: torch.Tensor, causal: bool, probability: float
) -> torch.Tensor:
    query, key, value = (tensor.detach().cpu().double() for tensor in tensors)
    with sdpa_kernel(MATH):
        attention, _ = aten._scaled_dot_product_attention_math(
            query, key, value, None, probability, causal, kept.cpu()
        )
    return attention
