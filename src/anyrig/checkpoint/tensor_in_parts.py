"""A tensor of a checkpoint that is stored in several files; a reader may need only some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .region import Region, whole_region


@dataclass(frozen=True)
class TensorInParts:
    """A tensor whose parts are mapped from files: reading one part reads no other part.

    Attributes:
        shape: the shape of the whole tensor.
        dtype: the type of its elements.
        parts: the parts, each with its region; together they cover the tensor exactly once.
    """

    shape: torch.Size
    dtype: torch.dtype
    parts: Sequence[tuple[Region, Tensor]]

    def read_into(self, target: Tensor, start: tuple[int, ...]) -> Tensor:
        """Copy the region that begins at `start` and has the shape of `target` into `target`."""
        wanted = Region(start, tuple(target.shape))
        for region, part in self.parts:
            both = wanted.overlap(region)
            if both is not None:
                target[both.slices_in(wanted)].copy_(part[both.slices_in(region)])
        return target

    def whole(self) -> Tensor:
        """Return the whole tensor, in the host's memory."""
        target = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        return self.read_into(target, whole_region(self.shape).start)


# A tensor of a checkpoint: in memory, mapped from a file, or in several files.
SavedTensor = Tensor | TensorInParts


def whole_tensor(tensor: SavedTensor) -> Tensor:
    """Return a tensor of a checkpoint as one tensor."""
    return tensor.whole() if isinstance(tensor, TensorInParts) else tensor
