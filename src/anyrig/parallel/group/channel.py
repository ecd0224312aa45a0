"""Where the hosts of the ranks exchange small numbers, beside what their devices exchange."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .membership import carrier_of

_OWN_GROUPS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Channel:
    """A process group of all ranks that takes tensors on the CPU.

    Attributes:
        carrier: the process group.
        rank: this process's number in it.
        world_size: how many ranks there are.
    """

    carrier: Any
    rank: int
    world_size: int


def open_channel() -> Channel:
    """Return the channel of the default group; every rank calls this at the same time.

    The default group itself, if it carries the CPU's tensors. If the script made one that does not,
    one over gloo beside it, the same for all models.
    """
    world = dist.group.WORLD
    carrier = world
    if carrier_of(dist.get_backend_config(), torch.device("cpu")) is None:
        if world not in _OWN_GROUPS:
            _OWN_GROUPS[world] = dist.new_group(backend="gloo")
        carrier = _OWN_GROUPS[world]
    return Channel(carrier, dist.get_rank(), dist.get_world_size())
