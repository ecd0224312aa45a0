"""Collectives among the devices of one process: the functions under `torch.cuda.nccl`.

Several processes meet in a process group instead. The checks are those of
`torch/csrc/cuda/nccl.cpp`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

from torch import Tensor

# The version that torch 2.13's wheels for CUDA 12.8 carry, as (major << 32 | minor << 16 | patch).
_VERSION = (2 << 32) | (27 << 16) | 5

_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES

Tensors = Collection[Tensor]

_SUM, _PRODUCT, _MAX, _MIN, _AVERAGE = range(5)  # ncclRedOp_t


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""
    kinds = core.CollectiveKind

    def reduce(inputs: Tensors, output: Tensor, root: int, op: int, *_: object) -> None:
        parts = _one_a_device(inputs)
        run(core, kinds.REDUCE, parts, lambda: output.copy_(_combined(parts, root, op)))

    def all_reduce(inputs: Tensors, outputs: Tensors, op: int, *_: object) -> None:
        parts, results = _one_a_device(inputs), _one_a_device(outputs)

        def work() -> None:
            total = _combined(parts, 0, op)
            for result in results:
                result.copy_(total, non_blocking=True)

        run(core, kinds.ALL_REDUCE, parts, work)

    def broadcast(inputs: Tensors, root: int, *_: object) -> None:
        tensors = _one_a_device(inputs)

        def work() -> None:
            for index, tensor in enumerate(tensors):
                if index != root:
                    tensor.copy_(tensors[root], non_blocking=True)

        run(core, kinds.BROADCAST, tensors, work)

    def all_gather(inputs: Tensors, outputs: Tensors, *_: object) -> None:
        parts, results = _one_a_device(inputs), _one_a_device(outputs)

        def work() -> None:
            for result in results:
                slots = result.view(len(parts), *parts[0].shape)
                for slot, part in zip(slots, parts, strict=True):
                    slot.copy_(part, non_blocking=True)

        run(core, kinds.ALL_GATHER, results, work)

    def reduce_scatter(inputs: Tensors, outputs: Tensors, op: int, *_: object) -> None:
        parts, results = _one_a_device(inputs), _one_a_device(outputs)

        def work() -> None:
            for index, result in enumerate(results):
                slices = [part.view(len(results), *result.shape)[index] for part in parts]
                result.copy_(_combined(slices, index, op))

        run(core, kinds.REDUCE_SCATTER, parts, work)

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


def takes(tensors: Sequence[Tensor]) -> bool:
    """Whether NCCL would carry these from device to device: `is_available` in the same file."""
    devices = {tensor.get_device() for tensor in tensors}
    return len(devices) == len(tensors) and all(
        tensor.is_cuda and not tensor.is_sparse and tensor.is_contiguous() for tensor in tensors
    )


def run(
    core: ModuleType, kind: object, tensors: Sequence[Tensor], work: Callable[[], object]
) -> None:
    """Do `work` as one collective of the virtual clock among the devices of `tensors`.

    Each of `tensors` is what the collective's size is counted by: csrc/time/collective_time.h.
    """
    devices = [tensor.get_device() for tensor in tensors]
    core.run_collective(kind, tensors[0].nbytes, devices, work)


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


def _one_a_device(collection: Tensors) -> list[Tensor]:
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
