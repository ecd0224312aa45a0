"""Where a tensor of a model lies in memory that has all of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...mapped_memory import Block


class Place(NamedTuple):
    """Where a tensor lies in the memory of a model, and what it is."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_parameter: bool

    def in_memory(self, block: Block) -> Tensor:
        """Return the tensor of this place, in a storage of its own."""
        flat = block.apart(self.start, self.dtype, math.prod(self.shape))
        return flat.as_strided(self.shape, self.strides)
