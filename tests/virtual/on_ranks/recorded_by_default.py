"""NCCL's flight recorder with default settings, which keeps the last 2000 calls."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist

BINDINGS: Any = torch._C._distributed_c10d  # type: ignore[attr-defined]
KEPT_CALLS = 2000


def case_the_last_calls_are_kept(world: Any) -> None:
    # A group of this rank alone, so that calls do not wait for other processes.
    alone = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    BINDINGS._reset_fr_recording_nccl()
    tensor = torch.zeros(1, device="cuda")
    for _ in range(KEPT_CALLS + 1):
        dist.all_reduce(tensor, group=alone)
    entries = pickle.loads(BINDINGS._dump_nccl_trace())["entries"]
    assert len(entries) == KEPT_CALLS
    assert entries[0]["record_id"] == 1
