"""Shape-only mode: no data moves, but the ranks compare their calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from anyrig.errors import ValueNeededError


def case_shapes_and_bytes(world: Any) -> None:
    # `everything` has 64 GiB on each rank, more than a test host has.
    length = 16 * 2**30 // world.size
    mine = torch.empty(length, device="cuda")
    everything = torch.empty(length * world.size, device="cuda")
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(everything, mine)
    dist.all_reduce(everything)
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(mine, everything)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, mine, (world.rank + 1) % world.size),
            dist.P2POp(dist.irecv, torch.empty_like(mine), (world.rank - 1) % world.size),
        ]
    ):
        work.wait()
    dist.barrier(device_ids=[world.rank])


def case_mismatches(world: Any) -> None:
    with pytest.raises(dist.DistBackendError, match="rank 0 sends 4000000000 bytes to rank 1"):
        dist.all_reduce(torch.empty(10**9 + world.rank, device="cuda"))
    if world.rank == 0:
        dist.send(torch.empty(3 * 10**6, device="cuda"), 1)
    elif world.rank == 1:
        with pytest.raises(dist.DistBackendError, match="sent 12000000 bytes"):
            dist.recv(torch.empty(4 * 10**6, device="cuda"), 0)


def case_gloo_needs_values(world: Any) -> None:
    group = dist.new_group(backend="gloo")
    known = torch.tensor([world.rank + 1.0], device="cuda")
    dist.all_reduce(known, group=group)
    assert known.tolist() == [sum(range(1, world.size + 1))]
    with pytest.raises(RuntimeError, match="assume"):
        dist.all_reduce(torch.empty(10**6, device="cuda"), group=group)


def case_a_result_is_known_if_every_rank_knows_its_input(world: Any) -> None:
    counted = torch.zeros(4, device="cuda") + world.rank
    dist.all_reduce(counted)
    assert counted.tolist() == [sum(range(world.size))] * 4

    is_first = world.rank == 0
    mixed = torch.ones(4, device="cuda") if is_first else torch.randn(4, device="cuda")
    both = torch.zeros(8, device="cuda")
    dist.all_reduce(mixed)
    dist.all_reduce(both[4:].copy_(torch.randn(4, device="cuda")))
    sent = torch.randn(4, device="cuda") if is_first else torch.ones(4, device="cuda")
    dist.broadcast(sent, 0)
    for unknown in (mixed, both, sent):
        with pytest.raises(ValueNeededError):
            unknown.tolist()
