"""Where the hosts of the ranks exchange small numbers, beside what their devices exchange."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .membership import carrier_of


@dataclass
class Counts:
    """How often something was begun over one process group, the same on each rank.

    Attributes:
        models: spread over it.
        meetings: exchanges of numbers.
    """

    models: int = 0
    meetings: int = 0


@dataclass(frozen=True)
class Channel:
    """A process group of all ranks that takes tensors on the CPU.

    Attributes:
        carrier: the process group.
        rank: this process's number in it.
        world_size: how many ranks there are.
        counts: of all channels of the default group.
    """

    carrier: Any
    rank: int
    world_size: int
    counts: Counts


def tell_all(own: torch.Tensor, group: Any = None) -> tuple[torch.Tensor, Any]:
    """Begin to give every rank what each rank has: a row of few numbers on the CPU.

    Directly from rank to rank: gloo's all-reduce takes several rounds of messages for as much,
    which cost four times the processor time.

    Args:
        own: of this rank, one dimension.
        group: what carries it; None takes the default group.

    Returns:
        A row of each rank, and the work after which they are there.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = own.new_zeros(ranks, len(own))
    rows[rank] = own
    given = own.repeat(ranks)
    return rows, dist.all_to_all_single(rows.view(-1), given, group=group, async_op=True)


# Of each default group, which must not be kept alive: its own group where there is one; its counts.
_own_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_counts: weakref.WeakKeyDictionary[Any, Counts] = weakref.WeakKeyDictionary()


def open_channel() -> Channel:
    """Return the channel of the default group; every rank calls this at the same time.

    The default group itself, if it carries the CPU's tensors. If the script made one that does not,
    one over gloo beside it, the same for all models.
    """
    world: Any = dist.group.WORLD
    carrier = world
    if carrier_of(dist.get_backend_config(), torch.device("cpu")) is None:
        if world not in _own_groups:
            _own_groups[world] = dist.new_group(backend="gloo")
        carrier = _own_groups[world]
    return Channel(carrier, dist.get_rank(), dist.get_world_size(), current_counts())


def current_counts() -> Counts:
    """Return the counts of the default group."""
    return _counts.setdefault(dist.group.WORLD, Counts())
