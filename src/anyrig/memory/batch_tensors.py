"""The tensors of the batch that was computed when a device ran out of memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..observe.census import Census
from ..observe.source_line import SourceLine
from ..observe.storages import storages_of
from .device_record import DeviceRecord
from .kinds import Kind
from .module_calls import outermost_call
from .tensor_roles import tensors_in

# Libraries whose batches are graphs: their nodes cannot be computed without their neighbours.
_GRAPH_LIBRARIES = ("torch_geometric", "dgl", "torch_sparse")
_COPY = re.compile(r"\.(to|cuda|to_device)\(")


def copies_batch(line: SourceLine | None) -> bool:
    """Return whether a line outside of all modules copies data to a device, by its text."""
    return line is not None and _COPY.search(line.text) is not None


def find_batch(
    record: DeviceRecord, position: int, stacks: Sequence[FrameType], census: Census
) -> tuple[Any, ...]:
    """Return what holds the batch: the arguments of the running model, or tensors.

    Args:
        record: the record of a device.
        position: the position in its timeline at which the batch was there.
        stacks: the innermost frame of each thread.
        census: what the program holds.
    """
    for frame in stacks:
        call = outermost_call(frame)
        if call is not None:
            return call[1]
    addresses = {
        block.data_address or block.address
        for block in record.timeline.blocks
        if block.is_alive_at(position) and record.kinds.kind_at(block, position) is Kind.BATCH
    }
    device = record.timeline.device
    return tuple(
        tensor
        for tensor in census.tensors
        if tensor.device == device
        and any(storage.data_ptr() in addresses for storage in storages_of(tensor))
    )


def can_be_halved(batch: Iterable[Any]) -> bool:
    """Return whether a batch may have two halves: neither one sample nor a graph.

    A batch of unknown size may have two halves.
    """
    batch = tuple(batch)
    if any(type(each).__module__.split(".")[0] in _GRAPH_LIBRARIES for each in batch):
        return False
    tensors = [each for each in tensors_in(list(batch)) if each.layout is not None]
    if any(each.layout is not torch.strided for each in tensors):  # an adjacency matrix
        return False
    if any(map(_is_edges, tensors)) and any(each.size(0) != 2 for each in tensors if each.dim()):
        return False
    sizes = [each.size(0) for each in tensors if each.dim() > 0]
    return not sizes or max(sizes) > 1


def _is_edges(tensor: Tensor) -> bool:
    """Return whether a tensor has the form of a graph's edges: pairs of nodes, as two rows."""
    is_integral = not tensor.is_floating_point() and tensor.dtype is not torch.bool
    return is_integral and tensor.dim() == 2 and tensor.size(0) == 2
