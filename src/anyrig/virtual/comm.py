"""Copies between the devices of one process: what `nn.DataParallel` and `torch.cuda.comm` call.

The steps are those of `torch/csrc/cuda/comm.cpp`, since their temporaries count as memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# The version that torch 2.13's wheels for CUDA 12.8 carry, as (major << 32 | minor << 16 | patch).
_NCCL_VERSION = (2 << 32) | (27 << 16) | 5

_HOST = -1

# Its functions on lists of tensors, which have no types.
_lists: Any = torch._utils


def broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    """Return `tensor` on each of `devices`; where it already is, itself."""
    results = []
    for device in devices:
        if tensor.is_cuda and tensor.get_device() == device:
            results.append(tensor)
        else:
            copy = torch.empty_like(tensor, device=torch.device("cuda", device))
            results.append(copy.copy_(tensor, non_blocking=True))
    return results


def broadcast_out(tensor: Tensor, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copy `tensor` into each of `outputs`."""
    for index, output in enumerate(outputs):
        if not output.is_cuda:
            raise RuntimeError(
                "Expected all output tensors to be CUDA tensors, but output tensor at index "
                f"{index} has device '{output.device}'"
            )
        if output.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {index} has shape "
                f"{list(output.shape)}"
            )
        output.copy_(tensor, non_blocking=True)
    return outputs


def broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    """Return `tensors` on each of `devices`, copied in buffers of up to `buffer_size` bytes."""
    tensors = [tensor.detach() for tensor in tensors]
    if any(tensor.get_device() != devices[0] for tensor in tensors):
        raise RuntimeError("All tensors must be on devices[0]: " + str(devices[0]))
    results: list[list[Tensor]] = [list(tensors)] + [[] for _ in devices[1:]]
    for chunk in _lists._take_tensors(tensors, buffer_size):
        flat = _lists._flatten_dense_tensors(chunk)
        for result, copy in zip(results[1:], broadcast(flat, devices)[1:], strict=True):
            result.extend(part.detach() for part in _lists._unflatten_dense_tensors(copy, chunk))
    return [results[0]] + [
        list(_lists._reorder_tensors_as(result, tensors)) for result in results[1:]
    ]


def scatter(
    tensor: Tensor,
    devices: Sequence[int],
    sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[torch.cuda.Stream | None] | None = None,
) -> list[Tensor]:
    """Return the parts of `tensor` along `dim`, each on its device."""
    parts = (
        tensor.chunk(len(devices), dim)
        if sizes is None
        else tensor.split_with_sizes(list(sizes), dim)
    )
    results = []
    for index, (part, device) in enumerate(zip(parts, devices)):  # noqa: B905 - may be fewer parts
        with _on(streams[index] if streams is not None else None):
            target = torch.device("cuda", device)
            results.append(part.to(target, non_blocking=True, memory_format=torch.preserve_format))
    return results


def scatter_out(
    tensor: Tensor,
    outputs: Sequence[Tensor],
    dim: int = 0,
    streams: Sequence[torch.cuda.Stream | None] | None = None,
) -> Sequence[Tensor]:
    """Copy the parts of `tensor` along `dim` into `outputs`."""
    parts = tensor.split_with_sizes([output.size(dim) for output in outputs], dim)
    for index, (part, output) in enumerate(zip(parts, outputs, strict=True)):
        with _on(streams[index] if streams is not None else None):
            output.copy_(part, non_blocking=True)
    return outputs


def gather(tensors: Sequence[Tensor], dim: int, destination: int | None = None) -> Tensor:
    """Return `tensors` joined along `dim` on `destination`: a device, -1 for the host."""
    first = tensors[0]
    dim = dim + first.dim() if dim < 0 else dim
    for index, tensor in enumerate(tensors):
        if not tensor.is_cuda:
            raise RuntimeError(
                "Expected all input tensors to be CUDA tensors, but tensor at index "
                f"{index} has device '{tensor.device}'"
            )
        expected = [*first.shape[:dim], tensor.size(dim), *first.shape[dim + 1 :]]
        if list(tensor.shape) != expected:
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, but "
                f"expected {expected}"
            )
    size = [*first.shape[:dim], sum(t.size(dim) for t in tensors), *first.shape[dim + 1 :]]
    memory_format = torch.contiguous_format
    if all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors):
        memory_format = torch.channels_last
    if destination == _HOST:
        device = torch.device("cpu")
    else:
        index = torch.cuda.current_device() if destination is None else destination
        device = torch.device("cuda", index)
    output = torch.empty(size, dtype=first.dtype, device=device, memory_format=memory_format)
    return gather_out(tensors, output, dim)


def gather_out(tensors: Sequence[Tensor], output: Tensor, dim: int = 0) -> Tensor:
    """Copy `tensors` one after another along `dim` into `output`."""
    parts = output.split_with_sizes([tensor.size(dim) for tensor in tensors], dim)
    for tensor, part in zip(tensors, parts, strict=True):
        part.copy_(tensor, non_blocking=output.is_cuda)
    return output


def reduce(inputs: Sequence[Tensor], output: Tensor, root: int, *_: object) -> None:
    """Sum `inputs`, one a device, into `output` on the device of ``inputs[root]``."""
    total = inputs[root].clone()
    for index, tensor in enumerate(inputs):
        if index != root:
            total.add_(tensor.to(total.device, non_blocking=True))
    output.copy_(total)


def all_reduce(inputs: Sequence[Tensor], outputs: Sequence[Tensor], *_: object) -> None:
    """Sum `inputs`, one a device, into each of `outputs`."""
    reduce(inputs, outputs[0], 0)
    nccl_broadcast([outputs[0], *outputs[1:]], 0)


def nccl_broadcast(inputs: Sequence[Tensor], root: int, *_: object) -> None:
    """Copy ``inputs[root]`` into the other tensors."""
    for index, tensor in enumerate(inputs):
        if index != root:
            tensor.copy_(inputs[root], non_blocking=True)


def all_gather(inputs: Sequence[Tensor], outputs: Sequence[Tensor], *_: object) -> None:
    """Copy all `inputs`, one after another, into each of `outputs`."""
    for output in outputs:
        parts = output.view(len(inputs), *inputs[0].shape)
        for part, tensor in zip(parts, inputs, strict=True):
            part.copy_(tensor, non_blocking=True)


def reduce_scatter(inputs: Sequence[Tensor], outputs: Sequence[Tensor], *_: object) -> None:
    """Sum `inputs`, one a device, and leave one part of the sum in each of `outputs`."""
    for index, output in enumerate(outputs):
        parts = [tensor.view(len(outputs), *output.shape)[index] for tensor in inputs]
        reduce(parts, output, index)


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""
    return {
        "_broadcast": broadcast,
        "_broadcast_out": broadcast_out,
        "_broadcast_coalesced": broadcast_coalesced,
        "_scatter": scatter,
        "_scatter_out": scatter_out,
        "_gather": gather,
        "_gather_out": gather_out,
        "_nccl_reduce": reduce,
        "_nccl_all_reduce": all_reduce,
        "_nccl_broadcast": nccl_broadcast,
        "_nccl_all_gather": all_gather,
        "_nccl_reduce_scatter": reduce_scatter,
        "_nccl_version": lambda: _NCCL_VERSION,
        "_nccl_version_suffix": lambda: b"",
    }


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)
