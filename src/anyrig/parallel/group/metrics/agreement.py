"""Whether all ranks call the same with values of the same structure, before any of them waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ....errors import RankMismatchError
from ..board import board_of
from ..membership import Group


@dataclass(frozen=True)
class Announcement:
    """What one rank brings to a call.

    Attributes:
        call: the public function that was called.
        said: lines of text, a leaf each, that must be the same on all ranks.
        error: why this rank cannot go on, if it cannot; every rank then raises.
        pickled: its value without the tensors.
        layout: dtype and shape of each of these.
        kinds: of the devices that they are on.
    """

    call: str
    said: Sequence[str]
    error: str
    pickled: bytes
    layout: Sequence[tuple[torch.dtype, torch.Size]]
    kinds: frozenset[str]


def agree(
    group: Group,
    call: str,
    tensors: Sequence[Tensor],
    *,
    said: Sequence[str] = (),
    error: str = "",
    pickled: bytes = b"",
) -> tuple[list[Announcement], torch.device]:
    """Return what every rank brings, and by way of which device the tensors are to travel.

    Announcements travel as pickles, as in all of PyTorch's object collectives: the ranks of a
    group trust each other.

    Raises:
        RankMismatchError: some rank differs from rank 0, or cannot go on; the message says which,
            and where.
    """
    board_of(group).come_to(call)
    layout = [(tensor.dtype, tensor.shape) for tensor in tensors]
    kinds = frozenset(tensor.device.type for tensor in tensors)
    heard: list[Any] = [None] * group.world_size
    dist.all_gather_object(heard, Announcement(call, said, error, pickled, layout, kinds))
    for rank, other in enumerate(heard):
        if other.error:
            raise RankMismatchError(f"rank {rank} in {other.call}: {other.error}")
    first = heard[0]
    for rank, other in enumerate(heard):
        if other.call != first.call:
            raise RankMismatchError(
                f"rank {rank} calls {other.call}, while rank 0 calls {first.call}; let all ranks "
                "call the same in the same order"
            )
        for expected, found in zip_longest(first.said, other.said, fillvalue="nothing more"):
            if found != expected:
                raise RankMismatchError(
                    f"{call} needs the same structure on every rank: rank 0 has {expected}, but "
                    f"rank {rank} has {found}"
                )
    return heard, _choose_device(group, kinds.union(*(other.kinds for other in heard)))


def _choose_device(group: Group, kinds: frozenset[str]) -> torch.device:
    # The tensors' own, if all lie on accelerators and the group carries these by itself; gloo
    # would only copy them to the CPU and back.
    parts = (part.partition(":") for part in dist.get_backend_config().split(","))
    carriers = {kind: backend for kind, _, backend in parts if backend}
    by_itself = carriers.get(group.device.type, "gloo") != "gloo"
    if "cpu" not in carriers or (by_itself and kinds and "cpu" not in kinds):
        return group.device
    return torch.device("cpu")
