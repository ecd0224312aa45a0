"""Where the tensors of a model lie in memory that all processes map.

::

    parameters    the module's own memory: what the optimizer writes, every process reads
    other         copies, which this process refreshes when the originals have changed: a worker
                  computes with copies of these, as batch normalization writes its statistics
    a worker's    a row for each worker, with the places of the parameters
    gradients
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ....errors import SpreadError
from ...mapped_memory import Block, make_block
from .place import Place
from .sum_memory import SumMemory

_ALIGNMENT = 64
_REMEDY = "; use the threads of plan=Replicas()"


@dataclass(eq=False)
class Slot:
    """A tensor of the model in the process that trains it."""

    tensor: Tensor
    place: Place
    shared: Tensor  # the memory of its place
    seen: int | None = None  # the version that was copied, of a tensor that is not a parameter


class SharedTensors:
    """The memory of one model's tensors; see above.

    Parameters move there in place, and remain the same objects for the optimizer. Other tensors
    that were views of their former memory do not follow.

    Raises:
        SpreadError: a tensor is not in the host's memory, or two parameters share memory.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        ordered = sorted(tensors, key=lambda each: not is_parameter(each))
        require_apart(ordered)
        places: dict[int, Place] = {}
        start = self.parameter_bytes = 0
        for tensor in ordered:
            strides = torch.empty_like(tensor.detach(), device="meta").stride()
            learns = is_parameter(tensor)
            places[id(tensor)] = Place(start, tensor.dtype, tuple(tensor.shape), strides, learns)
            start += -(-tensor.numel() * tensor.itemsize // _ALIGNMENT) * _ALIGNMENT
            if learns:
                self.parameter_bytes = start
        self.block = _make_block(start)
        self.slots = [
            Slot(each, places[id(each)], places[id(each)].in_memory(self.block)) for each in tensors
        ]
        self.parameters = [slot for slot in self.slots if slot.place.is_parameter]
        # The numbers of the slots whose tensors are copied.
        self.others = [i for i, slot in enumerate(self.slots) if not slot.place.is_parameter]
        self._rows: list[tuple[Block, list[Tensor]]] = []
        for slot in self.parameters:
            slot.shared.copy_(slot.tensor.detach())
            slot.tensor.data = slot.shared
        self.sums = SumMemory([slot.place for slot in self.parameters], self.parameter_bytes)

    def are_in_place(self) -> bool:
        """Return whether all parameters are in their places."""
        return all(
            slot.tensor.data_ptr() == slot.shared.data_ptr()
            and slot.tensor.dtype == slot.place.dtype
            and slot.tensor.shape == slot.place.shape
            for slot in self.parameters
        )

    def refresh(self, everything: bool) -> list[int]:
        """Copy the other tensors that have changed; return the numbers of their slots.

        Batch normalization does not increment the version of its running statistics, so with
        `everything` all are copied.
        """
        changed = []
        for number in self.others:
            slot = self.slots[number]
            version = None if slot.tensor.is_inference() else slot.tensor._version
            if everything or version is None or version != slot.seen:
                slot.shared.copy_(slot.tensor.detach())
                slot.seen = version
                changed.append(number)
        return changed

    def row(self, number: int) -> tuple[Block, list[Tensor]]:
        """Return the memory for the gradients of a worker, and its part for each parameter."""
        while len(self._rows) <= number:
            block = _make_block(self.parameter_bytes)
            row = [slot.place.in_memory(block) for slot in self.parameters]
            self._rows.append((block, row))
        return self._rows[number]


def _make_block(size: int) -> Block:
    """Return a block whose file is closed with it."""
    block = make_block(max(size, _ALIGNMENT))
    weakref.finalize(block, os.close, block.descriptor)
    return block


def is_parameter(tensor: Tensor) -> bool:
    """Return whether a tensor may learn, so that processes share its memory."""
    return isinstance(tensor, nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)


def require_apart(tensors: Sequence[Tensor]) -> None:
    """Raise SpreadError if two parameters among tensors share memory."""
    parameters = filter(is_parameter, tensors)
    spans = sorted(
        (each.data_ptr(), each.data_ptr() + each.numel() * each.itemsize)
        for each in parameters
        if each.numel()
    )
    for (_, end), (start, _) in pairwise(spans):
        if start < end:
            raise SpreadError(
                "two parameters of the module are views of the same memory, which would come apart "
                f"in memory that processes share{_REMEDY}"
            )
