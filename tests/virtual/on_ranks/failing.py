"""Collectives that fail: every participating rank raises an error that names the cause."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist


def row(length: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(length, dtype=dtype, device="cuda")


def check_works(world: Any, group: Any = None) -> None:
    tensor = row()
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [world.size] * 4


def case_sizes_differ(world: Any) -> None:
    with pytest.raises(dist.DistBackendError) as raised:
        dist.all_reduce(row(4 + world.rank))
    text = str(raised.value)
    assert f"[Rank {world.rank} of group" in text
    assert "OpType=ALLREDUCE" in text
    assert "rank 0 sends 16 bytes to rank 1, which expects 20" in text
    check_works(world)


def case_collectives_differ(world: Any) -> None:
    words = (
        "rank 0 called broadcast with root 1 .collective [0-9]+ of this group., and rank 1 called "
        r"all_reduce\(SUM\) of Float"
    )
    with pytest.raises(dist.DistBackendError, match=words):
        dist.broadcast(row(), 1) if world.rank == 0 else dist.all_reduce(row())
    check_works(world)


def case_reductions_differ(world: Any) -> None:
    op = dist.ReduceOp.MAX if world.rank == 2 else dist.ReduceOp.SUM
    with pytest.raises(dist.DistBackendError, match=r"rank 2 called all_reduce\(MAX\) of Float"):
        dist.all_reduce(row(), op)
    dtype = torch.int32 if world.rank == 1 else torch.float32
    with pytest.raises(dist.DistBackendError, match=r"rank 1 called all_reduce\(SUM\) of Int"):
        dist.all_reduce(row(dtype=dtype))
    check_works(world)


def case_roots_differ(world: Any) -> None:
    with pytest.raises(dist.DistBackendError, match="rank 3 called broadcast with root 3"):
        dist.broadcast(row(), 3 if world.rank == 3 else 0)


def case_splits_differ(world: Any) -> None:
    # Rank 0 sends two elements to rank 1, which expects one.
    send_counts = [1, 2, 1, 1] if world.rank == 0 else [1] * 4
    with pytest.raises(dist.DistBackendError, match="rank 0 sends 8 bytes to rank 1"):
        dist.all_to_all_single(row(4), row(sum(send_counts)), [1] * 4, send_counts)
    check_works(world)


def case_messages_differ(world: Any) -> None:
    if world.rank == 0:
        dist.send(row(3), 1)
        dist.send(row(5), 1)
    elif world.rank == 1:
        with pytest.raises(dist.DistBackendError, match=r"rank 0 sent 12 bytes, .* expects 16"):
            dist.recv(row(4), 0)
        received = torch.zeros(5, device="cuda")
        dist.recv(received, 0)
        assert received.tolist() == [1] * 5


def case_errors_of_asynchronous_works(world: Any) -> None:
    work = dist.all_reduce(row(4 + world.rank), async_op=True)
    with pytest.raises(dist.DistBackendError, match="do not call the same collective"):
        work.wait()
    future = dist.all_reduce(row(4 + world.rank), async_op=True).get_future()
    with pytest.raises(RuntimeError, match="do not call the same collective"):
        future.wait()
    dist.all_reduce(row(4 + world.rank), async_op=True)
    with pytest.raises(dist.DistBackendError, match="do not call the same collective"):
        torch.cuda.synchronize()
    torch.cuda.synchronize()
    check_works(world)


def case_time_limit(world: Any) -> None:
    group = world.group(world.size, limit=1)
    if world.rank == 2:
        time.sleep(2)
        words = "connection to rank|timed out"
    else:
        words = r"timed out: rank 2 did not take part within 1000 ms"
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=words):
        dist.all_reduce(row(), group=group)
    assert time.monotonic() - started < 10
    # Other groups still work.
    check_works(world)


def case_time_limit_of_a_late_leader(world: Any) -> None:
    # Rank 0 collects the announcements. A rank whose time is up learns from it who is missing.
    group = world.group(world.size, limit=2)
    if world.rank == 2:
        time.sleep(3)
        words = "connection to rank|timed out"
    else:
        time.sleep(0.8 if world.rank == 0 else 0)
        words = r"timed out: rank 2 did not take part within 2000 ms"
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=words):
        dist.barrier(group=group, device_ids=[world.rank])
    assert time.monotonic() - started < 10


def case_time_limit_of_a_message(world: Any) -> None:
    group = world.group(2, limit=1)
    if world.rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"OpType=RECV.* rank 1 did not take part"):
            dist.recv(row(), 1, group=group)


def case_limits_can_be_set(world: Any) -> None:
    group = world.group(world.size, limit=600)
    backend = group._get_backend(torch.device("cuda"))
    # PyTorch 2.14 added a public function.
    set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
    set_timeout(timedelta(seconds=1), group)
    assert backend.options._timeout == timedelta(seconds=1)
    if world.rank:
        with pytest.raises(dist.DistBackendError, match="timed out: rank 0"):
            dist.barrier(group=group, device_ids=[world.rank])
    check_works(world)


def case_abort(world: Any) -> None:
    group = world.group(world.size, limit=600)
    if world.rank == 0:
        return
    backend = group._get_backend(torch.device("cuda"))
    timer = threading.Timer(0.3, backend.abort)
    timer.start()
    with pytest.raises(dist.DistBackendError, match=r"closed or aborted|connection"):
        dist.all_reduce(row(), group=group)
    timer.join()
    with pytest.raises(dist.DistBackendError, match="closed or aborted"):
        dist.all_reduce(row(), group=group)


def case_abort_ends_a_wait_for_a_message_to_oneself(world: Any) -> None:
    group = world.group(world.size, limit=20)
    receive = dist.P2POp(dist.irecv, row(), world.rank, group)
    (work,) = dist.batch_isend_irecv([receive])
    time.sleep(0.3)  # until the work waits
    started = time.monotonic()
    group._get_backend(torch.device("cuda")).abort()
    with pytest.raises(dist.DistBackendError, match="closed or aborted"):
        work.wait()
    assert time.monotonic() - started < 10


def case_a_rank_ends(world: Any) -> None:
    group = world.group(world.size, limit=600)
    check_works(world, group)
    last = world.size - 1
    if world.rank == last:
        os._exit(7)
    # Every rank notices, whether it is a neighbour of the ended rank or not.
    with pytest.raises(dist.DistBackendError, match=f"connection to rank {last} is lost"):
        dist.all_reduce(row(100_000), group=group)
