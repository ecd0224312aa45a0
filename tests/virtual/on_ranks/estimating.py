"""The estimated time of collectives: what the clock charges, without doing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_classes import HAS_BOTH, backend_of, is_second, version_of_torch

from anyrig.virtual import clock

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
MICROSECONDS = 1e6


def time_estimator(group: Any = None) -> Any:
    return dist.distributed_c10d._time_estimator(  # type: ignore[attr-defined]
        group, torch.device("cuda")
    )


def charged_seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    device = torch.cuda.current_device()
    before = clock().devices[device].collective_seconds
    call()
    torch.cuda.synchronize()
    return clock().devices[device].collective_seconds - before


def case_estimates_are_what_the_clock_charges(world: Any) -> None:
    data = torch.full((2**20,), 1.0, device="cuda")
    gathered = torch.zeros(world.size * 2**20, device="cuda")

    def call() -> None:
        dist.all_reduce(data)
        all_gather_single(gathered, data)
        dist.broadcast(data, 0)

    charged = charged_seconds(call)
    data.fill_(1)
    gathered.zero_()
    with time_estimator() as estimate:
        assert charged_seconds(call) == 0
    assert estimate.estimated_time == pytest.approx(charged * MICROSECONDS, rel=1e-5), (
        f"{estimate.estimated_time} us estimated, {charged * MICROSECONDS} us charged"
    )
    assert data.unique().tolist() == [1.0]  # nothing was done
    assert gathered.unique().tolist() == [0.0]
    dist.all_reduce(data)
    assert data.unique().tolist() == [float(world.size)]


def case_only_one_rank_estimates(world: Any) -> None:
    # NCCL's estimate needs no other rank.
    if world.rank == 0:
        data = torch.zeros(2**20, device="cuda")
        with time_estimator() as estimate:
            work: Any = dist.all_reduce(data, async_op=True)
            assert work.wait()
            assert work.is_completed()
            work.get_future().wait()
        assert estimate.estimated_time > 0
        with time_estimator() as nothing:
            pass
        assert nothing.estimated_time == 0


def case_messages_and_lists(world: Any) -> None:
    peer = (world.rank + 1) % world.size
    data = torch.zeros(2**20, device="cuda")
    with time_estimator() as one:
        dist.send(data, peer)
    with time_estimator() as both:
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, data, peer), dist.P2POp(dist.irecv, data, peer)]
        ):
            work.wait()
    assert both.estimated_time == pytest.approx(2 * one.estimated_time)
    with time_estimator() as reduced, dist._coalescing_manager():
        for _ in range(2):
            dist.all_reduce(data)
    with time_estimator() as alone:
        dist.all_reduce(data)
    assert reduced.estimated_time == pytest.approx(2 * alone.estimated_time)


def case_which_groups_estimate(world: Any) -> None:
    name = "_supports_time_estimate"
    name = name if hasattr(backend_of(), name) else "supports_time_estimate"
    assert getattr(backend_of(), name)
    if HAS_BOTH and not is_second():
        second = dist.new_group(backend="nccl2")
        assert getattr(backend_of(second), name) is (version_of_torch() >= (2, 15))
    gloo: Any = dist.new_group(backend="gloo")
    with pytest.raises(NotImplementedError, match="not supported"), time_estimator(gloo):
        pass
