"""Collectives among the devices of one process: the functions under `torch.cuda.nccl`.

Several processes meet in a process group instead. The checks are those of
`torch/csrc/cuda/nccl.cpp`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from torch import Tensor

# The version that torch 2.13's wheels for CUDA 12.8 carry, as (major << 32 | minor << 16 | patch).
_VERSION = (2 << 32) | (27 << 16) | 5

_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES

_SUM, _PRODUCT, _MAX, _MIN, _AVERAGE = range(5)  # ncclRedOp_t


def reduce(inputs: Collection[Tensor], output: Tensor, root: int, op: int, *_: object) -> None:
    """Combine `inputs`, one a device, into `output` on the device of ``inputs[root]``."""
    parts = _one_a_device(inputs)
    output.copy_(_combined(parts, root, op))


def all_reduce(
    inputs: Collection[Tensor], outputs: Collection[Tensor], op: int, *_: object
) -> None:
    """Combine `inputs`, one a device, into each of `outputs`."""
    parts, results = _one_a_device(inputs), _one_a_device(outputs)
    total = _combined(parts, 0, op)
    for result in results:
        result.copy_(total, non_blocking=True)


def broadcast(inputs: Collection[Tensor], root: int, *_: object) -> None:
    """Copy the input at `root` into the other tensors."""
    tensors = _one_a_device(inputs)
    for index, tensor in enumerate(tensors):
        if index != root:
            tensor.copy_(tensors[root], non_blocking=True)


def all_gather(inputs: Collection[Tensor], outputs: Collection[Tensor], *_: object) -> None:
    """Copy all `inputs`, one after another, into each of `outputs`."""
    parts, results = _one_a_device(inputs), _one_a_device(outputs)
    for result in results:
        slots = result.view(len(parts), *parts[0].shape)
        for slot, part in zip(slots, parts, strict=True):
            slot.copy_(part, non_blocking=True)


def reduce_scatter(
    inputs: Collection[Tensor], outputs: Collection[Tensor], op: int, *_: object
) -> None:
    """Combine `inputs`, one a device, and leave one part of the result in each of `outputs`."""
    parts, results = _one_a_device(inputs), _one_a_device(outputs)
    for index, result in enumerate(results):
        slices = [part.view(len(results), *result.shape)[index] for part in parts]
        result.copy_(_combined(slices, index, op))


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""
    return {
        "_nccl_reduce": reduce,
        "_nccl_all_reduce": all_reduce,
        "_nccl_broadcast": broadcast,
        "_nccl_all_gather": all_gather,
        "_nccl_reduce_scatter": reduce_scatter,
        "_nccl_version": lambda: _VERSION,
        "_nccl_version_suffix": lambda: b"",
        "_nccl_unique_id": lambda: os.urandom(_ID_BYTES),
    }


def _combined(parts: list[Tensor], root: int, op: int) -> Tensor:
    total = parts[root].clone()
    for index, part in enumerate(parts):
        if index == root:
            continue
        there = part.to(total.device, non_blocking=True)
        if op == _PRODUCT:
            total.mul_(there)
        elif op == _MAX:
            total = total.maximum(there)
        elif op == _MIN:
            total = total.minimum(there)
        else:
            total.add_(there)
    return total.div_(len(parts)) if op == _AVERAGE else total


def _one_a_device(collection: Collection[Tensor]) -> list[Tensor]:
    tensors = list(collection)
    if not tensors:
        raise RuntimeError("input sequence can't be empty")
    if any(not tensor.is_cuda or tensor.is_sparse for tensor in tensors):
        raise RuntimeError("input and output elements have to be cuda dense Tensors")
    if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
        raise RuntimeError("all inputs and outputs must be of the same Tensor dtype")
    if len({tensor.get_device() for tensor in tensors}) < len(tensors):
        raise RuntimeError("inputs must be on unique devices")
    if any(tensor.numel() != tensors[0].numel() for tensor in tensors):
        raise RuntimeError("all inputs must have the same number of elements")
    return tensors
