"""Whether all ranks call the same with values of the same structure, before any of them waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from ....errors import RankMismatchError
from ..membership import Group


@dataclass(frozen=True)
class Announcement:
    """What one rank brings to a call.

    Attributes:
        call: the public function that was called.
        said: lines of text, a leaf each, that must be the same on all ranks.
        error: why this rank cannot go on, if it cannot; every rank then raises.
        kinds: of the devices that its tensors are on.
        pickled: its value without the tensors.
        layout: dtype and shape of each of these.
    """

    call: str
    said: Sequence[str] = ()
    error: str = ""
    kinds: frozenset[str] = frozenset()
    pickled: bytes = b""
    layout: Sequence[tuple[torch.dtype, torch.Size]] = ()


def agree(mine: Announcement, group: Group) -> list[Announcement]:
    """Return the announcements of all ranks, once all announce the same.

    They travel as pickles, as in all of PyTorch's object collectives: the ranks of a group trust
    each other.

    Raises:
        RankMismatchError: some rank differs from rank 0, or cannot go on; the message says which,
            and where.
    """
    heard: list[Any] = [None] * group.world_size
    dist.all_gather_object(heard, mine)
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
        for expected, said in zip_longest(first.said, other.said, fillvalue="nothing more"):
            if said != expected:
                raise RankMismatchError(
                    f"{first.call} needs the same structure on every rank: rank 0 has {expected}, "
                    f"but rank {rank} has {said}"
                )
    return heard


def data_device(group: Group, announcements: Sequence[Announcement]) -> torch.device:
    """Return by way of which device tensors travel.

    Their own kind of device, if all of them lie on accelerators and the group carries these by
    itself; gloo would only copy them to the CPU and back.
    """
    parts = (part.partition(":") for part in dist.get_backend_config().split(","))
    carriers = {kind: backend for kind, _, backend in parts if backend}
    kinds = frozenset[str]().union(*(each.kinds for each in announcements))
    by_itself = carriers.get(group.device.type, "gloo") != "gloo"
    if "cpu" not in carriers or (by_itself and kinds and "cpu" not in kinds):
        return group.device
    return torch.device("cpu")
