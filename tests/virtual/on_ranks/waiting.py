"""Works of asynchronous, coalesced and batched calls, and the ways to wait for their data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from nccl_classes import LEGACY
from standard_error import standard_error_discarded
from torch import Tensor


def ones(world: Any, length: int = 4) -> Tensor:
    return torch.full((length,), float(world.rank + 1), device="cuda")


def rank_sum(world: Any) -> float:
    return float(sum(range(1, world.size + 1)))


def case_wait(world: Any) -> None:
    tensor = ones(world)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert tensor.tolist() == [rank_sum(world)] * 4


def case_many_pending_works(world: Any) -> None:
    tensors = [ones(world) * i for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert [tensor[0].item() for tensor in tensors] == [rank_sum(world) * i for i in range(20)]


def case_synchronize_the_device(world: Any) -> None:
    tensor = ones(world)
    dist.all_reduce(tensor, async_op=True)
    torch.cuda.synchronize()
    assert tensor.tolist() == [rank_sum(world)] * 4


def case_futures(world: Any) -> None:
    tensor = ones(world)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future().then(lambda done: done.value()[0] * 2)
    assert future.wait().tolist() == [2 * rank_sum(world)] * 4
    assert [value.tolist() for value in work.get_future().wait()] == [[rank_sum(world)] * 4]


def case_is_completed(world: Any) -> None:
    work = dist.barrier(async_op=True, device_ids=[world.rank])
    while not work.is_completed():
        pass
    work.wait()


def case_wait_frees_memory(world: Any) -> None:
    before = torch.cuda.memory_allocated()
    gathered = torch.empty(world.size * 1000, device="cuda")
    work = dist.all_reduce(gathered, async_op=True)
    del gathered
    assert torch.cuda.memory_allocated() > before
    work.wait()
    del work
    assert torch.cuda.memory_allocated() == before


def case_groups_do_not_wait_for_each_other(world: Any) -> None:
    # As with NCCL's communicators, groups run independently of each other.
    other = dist.new_group()
    first, second = ones(world), ones(world)
    calls = [(first, None), (second, other)]
    if world.rank % 2:
        calls.reverse()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in calls]
    for work in works:
        work.wait()
    assert first.tolist() == second.tolist() == [rank_sum(world)] * 4


def case_coalesced_reductions(world: Any) -> None:
    tensors = [ones(world, length) for length in (1, 2, 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert [tensor.tolist() for tensor in tensors] == [[rank_sum(world)] * n for n in (1, 2, 3)]


def case_coalesced_gathers_and_scatters(world: Any) -> None:
    gathered = [torch.zeros(world.size * n, device="cuda") for n in (1, 2)]
    with dist._coalescing_manager():
        for n, output in zip((1, 2), gathered, strict=True):
            gather_single(output, ones(world, n))
    ranks = torch.arange(1.0, world.size + 1)
    assert gathered[0].tolist() == ranks.tolist()
    assert gathered[1].tolist() == ranks.repeat_interleave(2).tolist()
    scattered = [torch.zeros(n, device="cuda") for n in (1, 2)]
    with dist._coalescing_manager():
        for n, output in zip((1, 2), scattered, strict=True):
            scatter_single(output, ones(world, n * world.size))
    assert [output.tolist() for output in scattered] == [[rank_sum(world)], [rank_sum(world)] * 2]


def case_coalesced_broadcasts(world: Any) -> None:
    tensors = [ones(world, length) for length in (1, 2)]
    device = torch.device(world.device)
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.broadcast(tensor, 1, async_op=True)
    manager.wait()
    assert [tensor.tolist() for tensor in tensors] == [[2.0], [2.0, 2.0]]


def case_ring_in_a_batch(world: Any) -> None:
    following, preceding = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    received = torch.zeros(4, device="cuda")
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, ones(world), following),
            dist.P2POp(dist.irecv, received, preceding),
        ]
    )
    for work in works:
        work.wait()
    assert received.tolist() == [preceding + 1.0] * 4


def case_all_to_all_in_a_batch(world: Any) -> None:
    received = [torch.zeros(2, device="cuda") for _ in range(world.size)]
    operations = []
    for peer in range(world.size):
        if peer != world.rank:
            operations.append(dist.P2POp(dist.irecv, received[peer], peer))
            operations.append(dist.P2POp(dist.isend, ones(world, 2) * (peer + 1), peer))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for peer in range(world.size):
        if peer != world.rank:
            assert received[peer].tolist() == [(peer + 1.0) * (world.rank + 1)] * 2


def case_messages_to_oneself_in_a_batch(world: Any) -> None:
    # The V-shaped schedules of PyTorch 2.11's pipelines send these.
    received = [torch.zeros(length, device="cuda") for length in (2, 3)]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, received[0], world.rank),
            dist.P2POp(dist.isend, ones(world, 2), world.rank),
            dist.P2POp(dist.isend, ones(world, 3) * 10, world.rank),
            dist.P2POp(dist.irecv, received[1], world.rank),
        ]
    )
    for work in works:
        work.wait()
    assert received[0].tolist() == [world.rank + 1.0] * 2
    assert received[1].tolist() == [10 * (world.rank + 1.0)] * 3
    for operation, text in ((dist.isend, "send to self"), (dist.irecv, "recv to self")):
        with pytest.raises(dist.DistBackendError, match=f"Trying to {text} without a matching"):
            operation(received[0], world.rank)


def case_both_send_before_they_receive(world: Any) -> None:
    # Ranks of the lower half exchange with ranks of the upper half.
    peer = (world.rank + world.size // 2) % world.size
    dist.send(ones(world, 100_000), peer)
    received = torch.zeros(100_000, device="cuda")
    dist.recv(received, peer)
    assert received.unique().tolist() == [peer + 1.0]


def case_sent_data_may_change_at_once(world: Any) -> None:
    if world.rank == 0:
        tensor = ones(world)
        work = dist.isend(tensor, 1)
        tensor.zero_()
        dist.send(tensor, 1)
        work.wait()
    elif world.rank == 1:
        first, second = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        works = [dist.irecv(first, 0), dist.irecv(second, 0)]
        for work in works:
            work.wait()
        assert (first.tolist(), second.tolist()) == ([1.0] * 4, [0.0] * 4)


def case_receives_do_not_delay_sends(world: Any) -> None:
    # A receive that waits for one rank must not delay a send to another.
    if world.rank == 1:
        from_two, from_zero = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        works = [dist.irecv(from_two, 2), dist.irecv(from_zero, 0), dist.isend(ones(world), 0)]
        for work in works:
            work.wait()
        assert from_two.tolist() == [3.0] * 4
    elif world.rank == 0:
        received = torch.zeros(4, device="cuda")
        dist.recv(received, 1)
        dist.send(received, 2)
        dist.send(ones(world), 1)
    elif world.rank == 2:
        received = torch.zeros(4, device="cuda")
        dist.recv(received, 0)
        assert received.tolist() == [2.0] * 4
        dist.send(ones(world), 1)


def case_wait_timeout(world: Any) -> None:
    from datetime import timedelta

    group = world.group(2, limit=20)
    if world.rank == 0:
        received = torch.zeros(4, device="cuda")
        work = dist.irecv(received, 1, group=group)
        with pytest.raises(dist.DistBackendError, match="not done 50 ms after"):
            work.wait(timedelta(milliseconds=50))
        dist.send(torch.ones(1, device="cuda"), 1, group=group)
        work.wait()
    elif world.rank == 1:
        dist.recv(torch.zeros(1, device="cuda"), 0, group=group)
        dist.send(ones(world), 0, group=group)


gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@contextmanager
def timed_group() -> Iterator[Any]:
    os.environ["TORCH_NCCL_ENABLE_TIMING"] = "1"
    try:
        yield dist.new_group(backend=LEGACY)
    finally:
        del os.environ["TORCH_NCCL_ENABLE_TIMING"]


def make_slow_hook(infos: list[Any]) -> Callable[[Any], None]:
    """Return a hook that takes longer than the collectives."""

    def record(info: Any) -> None:
        time.sleep(0.05)
        infos.append(info)

    return record


def case_completion_hooks(world: Any) -> None:
    infos: list[Any] = []
    plain = dist.new_group(backend=LEGACY)
    with pytest.raises(dist.DistBackendError, match="setting TORCH_NCCL_ENABLE_TIMING"):
        plain._register_on_completion_hook(infos.append)
    with timed_group() as group:
        group._register_on_completion_hook(make_slow_hook(infos))
        with pytest.raises(dist.DistBackendError, match="already registered"):
            group._register_on_completion_hook(infos.append)
    for _ in range(2):
        dist.all_reduce(ones(world), group=group, async_op=True)
    dist.broadcast(ones(world), 0, group=group)
    group._wait_for_pending_works()
    kinds = [str(info.op_type).rpartition(".")[2] for info in infos]
    assert kinds == ["ALLREDUCE", "ALLREDUCE", "BROADCAST"], kinds
    assert [info.seq for info in infos] == [1, 2, 3]
    assert all(info.active_duration.total_seconds() > 0 for info in infos)
    assert all(info.time_finished >= info.time_started for info in infos)


def case_destroying_a_group_waits_for_its_hook(world: Any) -> None:
    infos: list[Any] = []
    with timed_group() as group:
        group._register_on_completion_hook(make_slow_hook(infos))
    for _ in range(5):
        dist.all_reduce(ones(world), group=group, async_op=True)
    dist.destroy_process_group(group)
    assert len(infos) == 5


def case_durations(world: Any) -> None:
    with timed_group() as group:
        work = dist.all_reduce(ones(world), group=group, async_op=True)
    work.wait()
    assert work._get_duration() > 0
    work = dist.all_reduce(ones(world), async_op=True)
    work.wait()
    with pytest.raises(RuntimeError, match="only works if timing was enabled"):
        work._get_duration()


def case_ephemeral_timeout(world: Any) -> None:
    group = dist.new_group(backend=LEGACY, timeout=timedelta(seconds=20))
    backend = group._get_backend(torch.device("cuda"))
    backend._add_ephemeral_timeout(timedelta(seconds=10))
    # It ends with the first work, which cannot end before rank 0 begins it.
    if world.rank == 0:
        dist.barrier(device_ids=[world.rank])
    works = [dist.all_reduce(ones(world), group=group, async_op=True) for _ in range(2)]
    if world.rank != 0:
        dist.barrier(device_ids=[world.rank])
    begun_with_it = works if world.rank != 0 else works[:1]
    assert all(backend._verify_work_timeout(work, timedelta(seconds=30)) for work in begun_with_it)
    for work in works:
        work.wait()
    work = dist.all_reduce(ones(world), group=group, async_op=True)
    assert backend._verify_work_timeout(work, timedelta(seconds=20))
    work.wait()


def case_profiler_names(world: Any) -> None:
    following, preceding = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    row, received = ones(world), torch.empty(4, device="cuda")
    with (
        standard_error_discarded(),
        torch.autograd.profiler.profile(record_shapes=True) as profiled,
    ):
        dist.all_reduce(row)
        dist.barrier(device_ids=[world.rank])
        dist.send(row, following)
        dist.recv(received, preceding)
    events = {event.name: event for event in profiled.function_events}
    for name in (
        "nccl:all_reduce",
        "nccl:all_reduce_barrier",
        f"nccl:send {world.rank}->{following}",
        f"nccl:recv {world.rank}<-{preceding}",
    ):
        assert events[name].is_async, name
    assert events["nccl:all_reduce"].input_shapes == [[4]]


def case_cuda_graphs(world: Any) -> None:
    row = ones(world)
    dist.all_reduce(row)
    before = row.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(row)
        doubled = row * 2
        found = functional.all_reduce(doubled, "max", dist.group.WORLD) + 1
    assert torch.equal(row, before)  # capturing computes nothing
    for replay in (1, 2):
        graph.replay()
        expected = before * world.size**replay
        assert torch.equal(row, expected), (row, expected)
        assert torch.equal(doubled, expected * 2)
        assert torch.equal(found, expected * 2 + 1)
