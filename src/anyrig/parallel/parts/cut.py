"""Cutting a tensor into parts on several devices, and joining parts, the reverse operation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ...transfer.beside import copy_beside


def cut(
    tensor: Tensor, counts: Sequence[int], devices: Sequence[torch.device], dim: int = 0
) -> tuple[Tensor, ...]:
    """Return ``counts[i]`` samples of `tensor` on ``devices[i]``, for each i, in order.

    The counts sum to ``tensor.size(dim)``. Without a graph, a part on the tensor's own device is a
    view. Copies overlap with computation. Gradients of any order are supported.
    """
    if len(counts) == 1:
        return (copy_beside(tensor, devices[0]),)
    if not is_dense(tensor):
        along = dim % tensor.dim()  # narrow_copy of a sparse tensor takes no negative dimension
        return tuple(
            torch.narrow_copy(tensor, along, start, count).to(device)
            for start, count, device in zip(_starts(counts), counts, devices, strict=True)
        )
    if torch.is_grad_enabled() and tensor.requires_grad:
        parts: tuple[Tensor, ...] = _Cut.apply(  # type: ignore[no-untyped-call]
            tensor, tuple(counts), tuple(devices), dim
        )
        return parts
    return _cut(tensor, counts, devices, dim)


def join(parts: Sequence[Tensor], device: torch.device, dim: int = 0) -> Tensor:
    """Return the parts joined along `dim` on `device`: `torch.cat` across devices.

    Each part is copied once, directly into the result. Dtypes are promoted as in `torch.cat`.
    """
    if len(parts) == 1:
        return copy_beside(parts[0], device)
    if not all(map(is_dense, parts)):
        return torch.cat([part.to(device) for part in parts], dim)
    dtype = reduce(torch.promote_types, (part.dtype for part in parts))
    parts = [part.to(dtype) for part in parts]
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
        whole: Tensor = _Join.apply(device, dim, *parts)  # type: ignore[no-untyped-call]
        return whole
    return _join(parts, device, dim)


def _cut(
    tensor: Tensor, counts: Sequence[int], devices: Sequence[torch.device], dim: int
) -> tuple[Tensor, ...]:
    return tuple(
        copy_beside(tensor.narrow(dim, start, count) if count < tensor.size(dim) else tensor, to)
        for start, count, to in zip(_starts(counts), counts, devices, strict=True)
    )


def _join(parts: Sequence[Tensor], device: torch.device, dim: int) -> Tensor:
    if all(part.device == device for part in parts):
        return torch.cat(list(parts), dim)
    counts = [part.size(dim) for part in parts]
    shape = list(parts[0].shape)
    shape[dim] = sum(counts)
    layout = _memory_format(parts)
    whole = torch.empty(shape, dtype=parts[0].dtype, device=device, memory_format=layout)
    for start, count, part in zip(_starts(counts), counts, parts, strict=True):
        # The host waits for a copy to the CPU: it could read the memory before it is written.
        whole.narrow(dim, start, count).copy_(part, non_blocking=device.type != "cpu")
    return whole


class _Cut(torch.autograd.Function):
    """One node for all parts, so that it runs after every device has queued its backward pass.

    With a node for each part, the tensor's stream would wait for the first device that finishes,
    before the tensor's device has computed its own part.
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, counts: Sequence[int], devices: Sequence[torch.device], dim: int
    ) -> tuple[Tensor, ...]:
        ctx.device, ctx.dim = tensor.device, dim
        parts = _cut(tensor.detach(), counts, devices, dim)
        # Autograd forbids in-place operations on views that a function returns.
        return tuple(part.clone() if part.device == ctx.device else part for part in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return join(gradients, ctx.device, ctx.dim), None, None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, device: torch.device, dim: int, *parts: Tensor) -> Tensor:
        ctx.dim = dim
        ctx.counts = [part.size(dim) for part in parts]
        ctx.devices = [part.device for part in parts]
        return _join([part.detach() for part in parts], device, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, *cut(gradients[0], ctx.counts, ctx.devices, ctx.dim)


def _starts(counts: Sequence[int]) -> list[int]:
    return list(accumulate(counts, initial=0))[:-1]


def is_dense(tensor: Tensor) -> bool:
    """Return whether `tensor` is dense: neither sparse, nested, quantized nor a DTensor."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    )


def _memory_format(parts: Sequence[Tensor]) -> torch.memory_format:
    for dimensions, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if parts[0].dim() == dimensions and all(
            part.is_contiguous(memory_format=layout) and not part.is_contiguous() for part in parts
        ):
            return layout
    return torch.contiguous_format
