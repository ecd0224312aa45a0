"""Copies between the devices of one process, for `nn.DataParallel` and `torch.cuda.comm`.

The steps follow `torch/csrc/cuda/comm.cpp`, because its temporary tensors use GPU memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import nccl

_HOST = -1

# Functions on lists of tensors, which have no type annotations.
_lists: Any = torch._utils


def broadcast(core: ModuleType, tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    """Return a copy of `tensor` on each of `devices`; on its own device, `tensor` itself."""
    results = []
    for device in devices:
        if tensor.is_cuda and tensor.get_device() == device:
            results.append(tensor)
        else:
            results.append(torch.empty_like(tensor, device=torch.device("cuda", device)))
    _copy_to_all(core, tensor, [result for result in results if result is not tensor])
    return results


def broadcast_out(core: ModuleType, tensor: Tensor, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copy `tensor` into each of `outputs` and return `outputs`.

    Raises:
        RuntimeError: an output is not on a CUDA device or has another shape.
    """
    for index, output in enumerate(outputs):
        _require_output(output, index)
        if output.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {index} has shape "
                f"{list(output.shape)}"
            )
    _copy_to_all(core, tensor, outputs)
    return outputs


def broadcast_coalesced(
    core: ModuleType, tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    """Return `tensors` on each of `devices`, copied in buffers of up to `buffer_size` bytes.

    The result for ``devices[0]`` holds the caller's tensors.

    Raises:
        RuntimeError: a tensor is not on ``devices[0]``.
    """
    if any(tensor.get_device() != devices[0] for tensor in tensors):
        raise RuntimeError("All tensors must be on devices[0]: " + str(devices[0]))
    results: list[list[Tensor]] = [[] for _ in devices[1:]]
    for chunk in _lists._take_tensors([tensor.detach() for tensor in tensors], buffer_size):
        if chunk[0].is_sparse:
            flat_indices, flat_values = _lists._flatten_sparse_tensors(chunk)
            copies = zip(
                broadcast(core, flat_indices, devices),
                broadcast(core, flat_values, devices),
                strict=True,
            )
            parts = [_lists._unflatten_sparse_tensors(flat, chunk) for flat in copies]
        else:
            copies_dense = broadcast(core, _lists._flatten_dense_tensors(chunk), devices)
            parts = [_lists._unflatten_dense_tensors(flat, chunk) for flat in copies_dense]
        for result, device_parts in zip(results, parts[1:], strict=True):
            # `data` gives each part its own version counter: the parts are views of one buffer, and
            # writing to one must not bump the version of the others.
            result.extend(part.data for part in device_parts)
    return [list(tensors)] + [
        list(_lists._reorder_tensors_as(result, tensors)) for result in results
    ]


def scatter(
    tensor: Tensor,
    devices: Sequence[int],
    sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[torch.cuda.Stream | None] | None = None,
) -> list[Tensor]:
    """Split `tensor` along `dim` and return each part on its device.

    Args:
        tensor: the tensor to split.
        devices: CUDA indices, one per part.
        sizes: the length of each part along `dim`; without sizes, `Tensor.chunk` decides.
        dim: the dimension to split.
        streams: the stream of each copy; None for the current stream.

    Raises:
        RuntimeError: `devices` is empty, or `sizes` or a stream does not match `devices`.
    """
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if sizes is not None and len(sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got len(devices) = "
            f"{len(devices)} and len(chunk_sizes) = {len(sizes)}"
        )
    dim = _normalize_dim(dim, tensor)
    parts = (
        tensor.chunk(len(devices), dim)
        if sizes is None
        else tensor.split_with_sizes(list(sizes), dim)
    )
    results = []
    for index, (part, device) in enumerate(zip(parts, devices)):  # noqa: B905 - may be fewer parts
        with _stream_context(streams, index, device):
            target = torch.device("cuda", device)
            results.append(part.to(target, non_blocking=True, memory_format=torch.preserve_format))
    return results


def scatter_out(
    tensor: Tensor,
    outputs: Sequence[Tensor],
    dim: int = 0,
    streams: Sequence[torch.cuda.Stream | None] | None = None,
) -> Sequence[Tensor]:
    """Split `tensor` along `dim` and copy each part into its output; return `outputs`.

    Raises:
        RuntimeError: the shapes of `outputs` do not add up to that of `tensor`, an output is not on
            a CUDA device, or a stream is not on the device of its output.
    """
    if not outputs:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim = _normalize_dim(dim, tensor)
    for index, output in enumerate(outputs):
        _require_output(output, index)
        if output.dim() != tensor.dim() or _shape_without(output, dim) != _shape_without(
            tensor, dim
        ):
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: {list(output.shape)}. "
                f"Expected same shape except for scatter dim {dim} as the source tensor: "
                f"{list(tensor.shape)}"
            )
    sizes = [output.size(dim) for output in outputs]
    if sum(sizes) != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {tensor.size(dim)}, but got total size "
            f"{sum(sizes)}"
        )
    parts = tensor.split_with_sizes(sizes, dim)
    for index, (part, output) in enumerate(zip(parts, outputs, strict=True)):
        with _stream_context(streams, index, output.get_device()):
            output.copy_(part, non_blocking=True)
    return outputs


def gather(tensors: Sequence[Tensor], dim: int, destination: int | None = None) -> Tensor:
    """Concatenate `tensors` along `dim` on one device.

    Args:
        tensors: tensors on CUDA devices, equal in all dimensions but `dim`.
        dim: the dimension to concatenate.
        destination: a CUDA index, -1 for the host, or None for the current device.

    Raises:
        RuntimeError: a tensor is on the host, or the shapes do not match.
    """
    size = _gathered_size(tensors, dim)
    memory_format = torch.contiguous_format
    if all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors):
        memory_format = torch.channels_last
    if destination == _HOST:
        device = torch.device("cpu")
    else:
        index = torch.cuda.current_device() if destination is None else destination
        device = torch.device("cuda", index)
    output = torch.empty(size, dtype=tensors[0].dtype, device=device, memory_format=memory_format)
    return _copy_parts(output, tensors, dim)


def gather_out(tensors: Sequence[Tensor], output: Tensor, dim: int = 0) -> Tensor:
    """Concatenate `tensors` along `dim` into `output` and return `output`.

    Raises:
        RuntimeError: `output` does not have the concatenated shape, a tensor is on the host, or the
            shapes do not match.
    """
    size = _gathered_size(tensors, dim)
    if list(output.shape) != size:
        raise RuntimeError(
            f"Expected out tensor to have shape {size}, but got {list(output.shape)}"
        )
    return _copy_parts(output, tensors, dim)


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""
    functions: dict[str, Callable[..., Any]] = {
        "_broadcast": functools.partial(broadcast, core),
        "_broadcast_out": functools.partial(broadcast_out, core),
        "_broadcast_coalesced": functools.partial(broadcast_coalesced, core),
        "_scatter": scatter,
        "_scatter_out": scatter_out,
        "_gather": gather,
        "_gather_out": gather_out,
    }
    return {name: _without_torch_function(function) for name, function in functions.items()}


def _without_torch_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with `__torch_function__` disabled, as for a function in C++.

    Otherwise tensor subclasses would intercept its steps. The parameters of a lazy module, for
    example, reject every tensor function called from Python.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **options)

    return call


def _copy_to_all(core: ModuleType, tensor: Tensor, outputs: Sequence[Tensor]) -> None:
    def copy() -> None:
        for output in outputs:
            output.copy_(tensor, non_blocking=True)

    if outputs and nccl.can_transfer([tensor, *outputs]):
        nccl.run(core, core.CollectiveKind.BROADCAST, [tensor, *outputs], copy)
    else:
        copy()


def _require_output(output: Tensor, index: int) -> None:
    if not output.is_cuda:
        raise RuntimeError(
            "Expected all output tensors to be CUDA tensors, but output tensor at index "
            f"{index} has device '{output.device}'"
        )


def _normalize_dim(dim: int, tensor: Tensor) -> int:
    if tensor.dim() > 0:
        tensor.size(dim)  # raises PyTorch's IndexError
    return dim % max(tensor.dim(), 1)


def _shape_without(tensor: Tensor, dim: int) -> tuple[int, ...]:
    return (*tensor.shape[:dim], *tensor.shape[dim + 1 :])


def _gathered_size(tensors: Sequence[Tensor], dim: int) -> list[int]:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    first = tensors[0]
    dim = _normalize_dim(dim, first)
    size = list(first.shape)
    for index, tensor in enumerate(tensors):
        if not tensor.is_cuda:
            raise RuntimeError(
                "Expected all input tensors to be CUDA tensors, but tensor at index "
                f"{index} has device '{tensor.device}'"
            )
        if tensor.dim() != first.dim():
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {index} has {tensor.dim()} dimensions, (expected {first.dim()})"
            )
        size[dim] = tensor.size(dim)
        if list(tensor.shape) != size:
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, but "
                f"expected {size}"
            )
    size[dim] = sum(tensor.size(dim) for tensor in tensors)
    return size


def _copy_parts(output: Tensor, tensors: Sequence[Tensor], dim: int) -> Tensor:
    parts = output.split_with_sizes([tensor.size(dim) for tensor in tensors], dim)
    for tensor, part in zip(tensors, parts, strict=True):
        part.copy_(tensor, non_blocking=output.is_cuda)
    return output


def _stream_context(
    streams: Sequence[torch.cuda.Stream | None] | None, index: int, device: int
) -> AbstractContextManager[Any]:
    stream = streams[index] if streams is not None and index < len(streams) else None
    if stream is None:
        return nullcontext()
    if stream.device.index != device:
        raise RuntimeError(
            f"Expected the device associated with the stream at index {index} (was "
            f"{stream.device.index}) to match the device supplied at that index (expected {device})"
        )
    return torch.cuda.stream(stream)
