"""Collectives among the devices of one process: the functions behind `torch.cuda.nccl`.

`process_group` provides the collectives among several processes. The checks are those of
`torch/csrc/cuda/nccl.cpp`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

from torch import Tensor

_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES

Tensors = Collection[Tensor]

_SUM, _PRODUCT, _MAX, _MIN, _AVERAGE = range(5)  # ncclRedOp_t


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""
    kinds = core.CollectiveKind

    def reduce(inputs: Tensors, output: Tensor, root: int, op: int, *_: object) -> None:
        parts = _check_tensors(inputs)
        run(core, kinds.REDUCE, parts, lambda: output.copy_(_reduce(parts, root, op)))

    def all_reduce(inputs: Tensors, outputs: Tensors, op: int, *_: object) -> None:
        parts, results = _check_tensors(inputs), _check_tensors(outputs)

        def work() -> None:
            total = _reduce(parts, 0, op)
            for result in results:
                result.copy_(total, non_blocking=True)

        run(core, kinds.ALL_REDUCE, parts, work)

    def broadcast(inputs: Tensors, root: int, *_: object) -> None:
        tensors = _check_tensors(inputs)

        def work() -> None:
            for index, tensor in enumerate(tensors):
                if index != root:
                    tensor.copy_(tensors[root], non_blocking=True)

        run(core, kinds.BROADCAST, tensors, work)

    def all_gather(inputs: Tensors, outputs: Tensors, *_: object) -> None:
        parts, results = _check_tensors(inputs), _check_tensors(outputs)

        def work() -> None:
            for result in results:
                slots = result.view(len(parts), *parts[0].shape)
                for slot, part in zip(slots, parts, strict=True):
                    slot.copy_(part, non_blocking=True)

        run(core, kinds.ALL_GATHER, results, work)

    def reduce_scatter(inputs: Tensors, outputs: Tensors, op: int, *_: object) -> None:
        parts, results = _check_tensors(inputs), _check_tensors(outputs)

        def work() -> None:
            for index, result in enumerate(results):
                slices = [part.view(len(results), *result.shape)[index] for part in parts]
                result.copy_(_reduce(slices, index, op))

        run(core, kinds.REDUCE_SCATTER, parts, work)

    return {
        "_nccl_reduce": reduce,
        "_nccl_all_reduce": all_reduce,
        "_nccl_broadcast": broadcast,
        "_nccl_all_gather": all_gather,
        "_nccl_reduce_scatter": reduce_scatter,
        "_nccl_unique_id": lambda: os.urandom(_ID_BYTES),
    }


def can_transfer(tensors: Sequence[Tensor]) -> bool:
    """Return whether NCCL can transfer `tensors`: `is_available` of `torch/csrc/cuda/nccl.cpp`."""
    devices = {tensor.get_device() for tensor in tensors}
    return len(devices) == len(tensors) and all(
        tensor.is_cuda and not tensor.is_sparse and tensor.is_contiguous() for tensor in tensors
    )


def run(
    core: ModuleType, kind: object, tensors: Sequence[Tensor], work: Callable[[], object]
) -> None:
    """Run `work` and charge the virtual clock for one collective among the devices of `tensors`.

    Args:
        core: the loaded extension.
        kind: the `CollectiveKind`.
        tensors: one tensor per device, of the size from which csrc/time/collective_time.h computes
            the time of `kind`.
        work: a function that moves the data; its copies take no time of their own.
    """
    devices = [tensor.get_device() for tensor in tensors]
    core.run_collective(kind, tensors[0].nbytes, devices, work)


def _reduce(parts: list[Tensor], root: int, op: int) -> Tensor:
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


def _check_tensors(collection: Tensors) -> list[Tensor]:
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
