"""Which rank writes which part of which tensor, when all ranks write a checkpoint.

::

    in shards (FSDP2)              every rank writes its own shard
    in shards, twice (HSDP)        each shard is written by one of the ranks that have it
    a replica on each rank (DDP)   each tensor is written by one rank
    anything else                  written by rank 0: buffers may differ between the ranks

The ranks do not communicate: each computes the same division from the sizes of all tensors. The
largest tensor comes first, and each goes to the ranks with the fewest bytes so far.

Only the file format and the protocol for regions (``__create_chunk_list__``) are those of
`torch.distributed.checkpoint`. Its planner gathers pickled plans by collectives: their errors do
not name a missing rank, and they would mix with the collectives of the training run while a
`BackgroundSaver` writes. Its writer changes the disk by itself: the files could not be hashed as
they are written, and a test could not replay a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from .region import Region, whole_region
from .shards import is_sharded, local_part, region_of


@dataclass(frozen=True)
class Part:
    """What one rank writes of a tensor.

    Attributes:
        tensor: the elements, on their device.
        region: which elements of the whole tensor these are.
    """

    tensor: Tensor
    region: Region


class Division:
    """Divides tensors among the ranks, so that each writes about as many bytes.

    Attributes:
        rank: the rank of this process.
        count: the number of ranks.
    """

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        # By (how many ranks have the same elements, the place among these ranks).
        self._bytes: Counter[tuple[int, int]] = Counter()

    def writers(
        self, tensors: Mapping[str, Tensor], replicated: Collection[str]
    ) -> dict[str, int | None]:
        """Return the rank that writes each whole tensor; None for a tensor in shards.

        Call this method and `own_parts` for the same tensors in the same order on every rank.

        Args:
            tensors: the tensors, by name.
            replicated: the names of tensors that are equal on all ranks.
        """
        found: dict[str, int | None] = {}
        for name, tensor in _largest_first(tensors):
            if is_sharded(tensor):
                found[name] = None
            elif name in replicated:
                found[name] = self._take(self.count, _bytes_of(tensor))
            else:
                found[name] = 0
                self._bytes[self.count, 0] += _bytes_of(tensor)
        return {name: found[name] for name in tensors}

    def own_parts(
        self, tensors: Mapping[str, Tensor], writers: Mapping[str, int | None]
    ) -> dict[str, Part]:
        """Return what this rank writes, by name."""
        parts: dict[str, Part] = {}
        for name, tensor in _largest_first(tensors):
            if is_sharded(tensor):
                part = self._own_shard(tensor)
                if part is not None:
                    parts[name] = part
            elif writers[name] == self.rank:
                parts[name] = Part(tensor, whole_region(tensor.shape))
        return {name: parts[name] for name in tensors if name in parts}

    def _own_shard(self, tensor: Any) -> Part | None:
        """Return this rank's shard, unless another rank writes the same shard."""
        mesh, placements = tensor.device_mesh, tensor.placements
        coordinate = mesh.get_coordinate()
        replicas = [dim for dim, each in enumerate(placements) if each.is_replicate()]
        count = prod(mesh.size(dim) for dim in replicas)
        writer = self._take(count, _bytes_of(tensor)) if count > 1 else 0
        if coordinate is None:  # this rank has no part of the tensor
            return None
        place = 0
        for dim in replicas:
            place = place * mesh.size(dim) + coordinate[dim]
        region = region_of(tensor)
        if not prod(tensor.shape):  # empty: written once, for its shape
            is_own = not any(coordinate)
        else:
            is_own = place == writer and region.elements > 0
        return Part(local_part(tensor), region) if is_own else None

    def _take(self, count: int, bytes_: int) -> int:
        """Let one of `count` ranks with the same elements write `bytes_`; return its place."""
        place = min(range(count), key=lambda each: (self._bytes[count, each], each))
        self._bytes[count, place] += bytes_
        return place


def _largest_first(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return sorted(tensors.items(), key=lambda item: (-_bytes_of(item[1]), item[0]))


def _bytes_of(tensor: Tensor) -> int:
    return prod(tensor.shape) * tensor.element_size()
