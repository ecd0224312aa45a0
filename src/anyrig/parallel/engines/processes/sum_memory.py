"""Memory for the gradients of a step, which a later step uses again when nothing holds them."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from .place import Place


class SumMemory:
    """Hands out tensors for sums of gradients, one for each parameter.

    New memory costs more than the addition, as the system fills each page with zeros. A training
    that frees its gradients in each step (`zero_grad`) needs one piece of memory, and one that
    keeps them gets others.

    Args:
        places: of the parameters.
        size: the bytes from the first place to the end of the last.
    """

    def __init__(self, places: Sequence[Place], size: int) -> None:
        self._places, self._size = places, max(size, 1)
        self._free: list[mmap.mmap] = []

    def tensors(self) -> list[Tensor]:
        """Return tensors with the dtypes, shapes and strides of the parameters, not initialized."""
        memory = self._free.pop() if self._free else mmap.mmap(-1, self._size)
        held = memoryview(memory)  # by each storage, until it is freed
        weakref.finalize(held, self._free.append, memory)
        with torch.inference_mode(False):
            return [_in_memory(held, place) for place in self._places]


def _in_memory(memory: memoryview, place: Place) -> Tensor:
    count = math.prod(place.shape)
    if not count:
        return torch.empty(place.shape, dtype=place.dtype)
    flat = torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.start)
    return flat.as_strided(place.shape, place.strides)
