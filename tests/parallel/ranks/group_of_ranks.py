"""This rank, its group and the group's store, and events that ranks report to each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from anyrig.processes.group.board import board_of
from anyrig.processes.group.membership import join_group


def rank() -> int:
    return dist.get_rank()


def ranks() -> int:
    return dist.get_world_size()


def device() -> torch.device:
    group = join_group()
    assert group is not None
    return group.device


def store() -> Any:
    group = join_group()
    assert group is not None
    return board_of(group)._store


def keys() -> int:
    return int(store().num_keys())


def note(what: str) -> None:
    """Report an event to the other ranks."""
    store().set(f"test {what}", "")


def noted(what: str) -> bool:
    return bool(store().check([f"test {what}"]))


def at_once() -> None:
    """Wait for all ranks before a timed part, by a barrier that is not the tested one."""
    dist.barrier()
