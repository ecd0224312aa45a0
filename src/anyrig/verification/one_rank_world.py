"""A process group of rank 0 alone, for the run on one device within a larger group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

# Private: there is no public way to replace the default group temporarily.
# tests/verification/test_silent_findings.py would notice its change.
from torch.distributed.distributed_c10d import _update_default_pg

_VARIABLES = {
    **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
}


def new_group_of_first_rank() -> dist.ProcessGroup:
    """Return a group of rank 0 alone. All ranks must call this."""
    group: dist.ProcessGroup = dist.new_group([0])
    return group


@contextmanager
def alone_in(group: dist.ProcessGroup) -> Iterator[None]:
    """Make `group` the default group of rank 0, so that the block sees a world of one rank."""
    everyone = dist.group.WORLD
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(_VARIABLES)
    _update_default_pg(group)
    try:
        yield
    finally:
        _update_default_pg(everyone)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
