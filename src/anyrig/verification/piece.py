"""`Piece`, the part of a tensor that one rank holds.

::

    whole tensor, shape (4, 3)     rank 0: start (0, 0), values of shape (2, 3)
                                   rank 1: start (2, 0), values of shape (2, 3)

Taking a piece never communicates: ranks that do not have the same parameters cannot wait for each
other. The pieces of all ranks are joined later, in one process (`joining.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """The part of a tensor that one rank holds.

    Attributes:
        values: the part, a copy on the CPU.
        shape: the shape of the whole tensor, as far as the rank knows.
        start: where the part begins in the whole tensor.
        is_partial: whether the whole tensor is the sum over the ranks.
        flat_start: where the part begins in the flattened tensor, if it is part of that; then
            `values` has one dimension.
    """

    values: Tensor
    shape: tuple[int, ...]
    start: tuple[int, ...]
    is_partial: bool = False
    flat_start: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the rank holds the whole tensor."""
        if self.flat_start is not None:
            return self.values.numel() == math.prod(self.shape)
        return tuple(self.values.shape) == self.shape and not self.is_partial

    def paste_into(self, whole: Tensor) -> None:
        """Write the part to its place in the whole tensor."""
        if self.flat_start is not None:
            end = self.flat_start + self.values.numel()
            whole.view(-1)[self.flat_start : end] = self.values.to(whole.dtype)
            return
        region = tuple(
            slice(begin, begin + size)
            for begin, size in zip(self.start, self.values.shape, strict=True)
        )
        whole[region] = self.values.to(whole.dtype)


def piece_of(tensor: Tensor) -> Piece | None:
    """Return this rank's piece of a parameter or a gradient; None if the rank holds none of it."""
    from torch.distributed.tensor import DTensor

    from ..parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere

    tensor = tensor.detach()
    if isinstance(tensor, Elsewhere) or tensor.device.type == "meta":
        return None
    if not isinstance(tensor, DTensor):
        values = (tensor.to_dense() if tensor.layout is not torch.strided else tensor).cpu().clone()
        return Piece(values, tuple(values.shape), (0,) * values.dim())
    local = tensor.to_local()
    if local.numel() == 0:
        return None
    # Private, the protocol by which torch.distributed.checkpoint asks a tensor for its regions;
    # tests/verification/test_pieces.py would notice its change.
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return Piece(
        local.cpu().clone(),
        tuple(tensor.shape),
        tuple(chunk.offsets),
        is_partial=any(placement.is_partial() for placement in tensor.placements),
    )


def write_whole(tensor: Tensor, whole: Tensor) -> None:
    """Write this rank's part of a whole tensor into a parameter."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        tensor.copy_(whole)
        return
    local = tensor.to_local()
    if local.numel():
        (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
        region = tuple(
            slice(begin, begin + size)
            for begin, size in zip(chunk.offsets, chunk.sizes, strict=True)
        )
        local.copy_(whole[region])
