"""Operators to time: each function takes a dtype and sizes, creates operands and returns a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Call = Callable[[], Any]


def random(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def gradients_of(output: Tensor, *inputs: Tensor) -> Call:
    given = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, inputs, given, retain_graph=True)


def linear(dtype: torch.dtype, m: int, n: int, k: int) -> Call:
    x, weight, bias = random(dtype, m, k), random(dtype, n, k), random(dtype, n)
    return lambda: functional.linear(x, weight, bias)


def batched(dtype: torch.dtype, count: int, m: int, n: int, k: int) -> Call:
    left, right = random(dtype, count, m, k), random(dtype, count, k, n)
    return lambda: torch.bmm(left, right)


def _image(
    dtype: torch.dtype, batch: int, channels: int, out: int, size: int, kernel: int, groups: int
) -> tuple[Tensor, Tensor]:
    return (
        random(dtype, batch, channels, size, size),
        random(dtype, out, channels // groups, kernel, kernel),
    )


def convolution(is_last: bool, is_backward: bool) -> Callable[..., Call]:
    order = torch.channels_last if is_last else torch.contiguous_format

    def make(
        dtype: torch.dtype,
        batch: int,
        channels: int,
        out: int,
        size: int,
        kernel: int,
        stride: int,
        groups: int = 1,
    ) -> Call:
        x, weight = (
            one.to(memory_format=order).requires_grad_(is_backward)
            for one in _image(dtype, batch, channels, out, size, kernel, groups)
        )
        form = {"stride": stride, "padding": kernel // 2, "groups": groups}
        if is_backward:
            return gradients_of(functional.conv2d(x, weight, **form), x, weight)
        return lambda: functional.conv2d(x, weight, **form)

    return make


def attention(is_causal: bool, is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, batch: int, heads: int, length: int, width: int) -> Call:
        q, k, v = (
            random(dtype, batch, length, heads, width).transpose(1, 2).requires_grad_(is_backward)
            for _ in range(3)
        )
        if is_backward:
            output = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            return gradients_of(output, q, k, v)
        return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    return make


def one_operand(function: Callable[[Tensor], Any]) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x = random(dtype, rows, columns)
        return lambda: function(x)

    return make


def two_operands(function: Callable[[Tensor, Tensor], Any]) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x, y = random(dtype, rows, columns), random(dtype, rows, columns)
        return lambda: function(x, y)

    return make


def backward(function: Callable[[Tensor], Tensor]) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x = random(dtype, rows, columns).requires_grad_()
        return gradients_of(function(x), x)

    return make


def layer_norm(is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x = random(dtype, rows, columns).requires_grad_(is_backward)
        weight, bias = (random(dtype, columns).requires_grad_(is_backward) for _ in range(2))
        if is_backward:
            output = functional.layer_norm(x, (columns,), weight, bias)
            return gradients_of(output, x, weight, bias)
        return lambda: functional.layer_norm(x, (columns,), weight, bias)

    return make


def batch_norm(is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, batch: int, channels: int, size: int) -> Call:
        x = random(dtype, batch, channels, size, size).to(memory_format=torch.channels_last)
        x.requires_grad_(is_backward)
        weight, bias = (
            random(torch.float32, channels).requires_grad_(is_backward) for _ in range(2)
        )
        mean, variance = random(torch.float32, channels), random(torch.float32, channels).abs()
        if is_backward:
            output = functional.batch_norm(x, mean, variance, weight, bias, True)
            return gradients_of(output, x, weight, bias)
        return lambda: functional.batch_norm(x, mean, variance, weight, bias, True)

    return make


def embedding(is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, words: int, width: int, tokens: int) -> Call:
        weight = random(dtype, words, width).requires_grad_(is_backward)
        ids = torch.randint(words, (tokens,), device="cuda")
        if is_backward:
            return gradients_of(functional.embedding(ids, weight), weight)
        return lambda: functional.embedding(ids, weight)

    return make


def cross_entropy(is_backward: bool) -> Callable[..., Call]:
    def make(dtype: torch.dtype, rows: int, columns: int) -> Call:
        x = random(dtype, rows, columns).requires_grad_(is_backward)
        labels = torch.randint(columns, (rows,), device="cuda")
        if is_backward:
            return gradients_of(functional.cross_entropy(x, labels), x)
        return lambda: functional.cross_entropy(x, labels)

    return make


def adamw(form: str) -> Callable[..., Call]:
    def make(dtype: torch.dtype, count: int, side: int) -> Call:
        parameters = [random(dtype, side, side).requires_grad_() for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        return torch.optim.AdamW(parameters, 1e-4, capturable=True, **{form: True}).step

    return make
