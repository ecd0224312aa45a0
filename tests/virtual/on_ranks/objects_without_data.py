"""Cases about objects that ranks exchange in shape-only mode, whose pickles differ in length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from anyrig.errors import ValueNeededError


def of(rank: int) -> dict[str, Any]:
    return {"rank": rank, "text": "x" * 100 * rank}


def case_gathered_by_all(world: Any) -> None:
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, of(world.rank))
    assert found == [of(rank) for rank in range(world.size)]


def case_gathered_by_one(world: Any) -> None:
    found: list[Any] | None = [None] * world.size if world.rank == 1 else None
    dist.gather_object(of(world.rank), found, dst=1)
    assert found is None or found == [of(rank) for rank in range(world.size)]


def case_scattered(world: Any) -> None:
    found: list[Any] = [None]
    objects = [of(rank) for rank in range(world.size)] if world.rank == 0 else None
    dist.scatter_object_list(found, objects, src=0)
    assert found == [of(world.rank)]


def case_longer_than_a_tensor_may_be_known(world: Any) -> None:
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, "x" * (3 << 20) * world.rank)
    assert [len(each) for each in found] == [(3 << 20) * rank for rank in range(world.size)]


def case_over_a_part_of_the_ranks(world: Any) -> None:
    group = dist.new_group([0, 1])
    if world.rank < 2:
        found: list[Any] = [None] * 2
        dist.all_gather_object(found, of(world.rank), group=group)
        assert found == [of(0), of(1)]


def case_other_new_elements_stay_unknown(world: Any) -> None:
    numbers = torch.arange(3, device="cuda").resize_(5)
    assert numbers[:3].tolist() == [0, 1, 2]
    with pytest.raises(ValueNeededError):
        numbers.tolist()
