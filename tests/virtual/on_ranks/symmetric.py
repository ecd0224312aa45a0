"""Symmetric memory: buffers that all ranks access, signals, and how both end."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from standard_error import standard_error_discarded
from torch._C._distributed_c10d import _SymmetricMemory

MIB = 2**20


def symmetric_tensor(world: Any, *shape: int, **options: Any) -> tuple[torch.Tensor, Any]:
    tensor = symm_mem.empty(*shape, device=world.device, **options)
    return tensor, symm_mem.rendezvous(tensor, dist.group.WORLD)


def case_memory_is_outside_of_the_caching_allocator(world: Any) -> None:
    gc.collect()
    dist.barrier(device_ids=[world.rank])  # before PyTorch 2.12 the last barrier keeps a tensor
    segment = torch.ones(1, device="cuda")  # the caching allocator keeps a segment from here on
    free, allocated = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    tensor, handle = symmetric_tensor(world, 3 * MIB, dtype=torch.uint8)
    dist.barrier(device_ids=[world.rank])
    assert free - torch.cuda.mem_get_info()[0] == 4 * MIB
    # The arrays of addresses come from the caching allocator.
    assert torch.cuda.memory_allocated() - allocated == 2 * 512
    assert handle.buffer_size == 3 * MIB
    del tensor
    assert free - torch.cuda.mem_get_info()[0] == 4 * MIB  # the handle keeps the memory
    del handle
    assert torch.cuda.mem_get_info()[0] == free
    assert segment.item() == 1
    with pytest.raises(RuntimeError, match="CUDA driver error: out of memory"):
        symm_mem.empty(torch.cuda.mem_get_info()[1], dtype=torch.uint8, device=world.device)


def case_ranks_write_to_each_others_buffers(world: Any) -> None:
    tensor, handle = symmetric_tensor(world, 8)
    assert symm_mem.get_backend("cuda") == "CUDA"
    if hasattr(symm_mem, "is_symm_mem_tensor"):  # from PyTorch 2.12 on
        assert symm_mem.is_symm_mem_tensor(tensor)
        assert not symm_mem.is_symm_mem_tensor(torch.empty(8, device="cuda"))
    assert (handle.rank, handle.world_size) == (world.rank, world.size)
    assert handle.buffer_ptrs[world.rank] == tensor.data_ptr()
    assert handle.multicast_ptr == 0
    assert not handle.has_multicast_support(torch._C._autograd.DeviceType.CUDA, world.rank)
    tensor.fill_(world.rank)
    handle.barrier()
    for peer in range(world.size):
        buffer = handle.get_buffer(peer, (4,), torch.float32, storage_offset=4)
        assert buffer.device == tensor.device
        assert buffer.tolist() == [peer] * 4
    handle.barrier()
    peer = (world.rank + 1) % world.size
    handle.get_remote_tensor(peer, (8,), torch.float32).add_(10)
    handle.barrier()
    assert (tensor * 2).tolist() == [2 * (world.rank + 10)] * 8
    with pytest.raises(RuntimeError, match="exceeds the allocated size"):
        handle.get_buffer(peer, (9,), torch.float32)
    again = symm_mem.rendezvous(tensor, dist.group.WORLD)
    assert again.buffer_ptrs == handle.buffer_ptrs


def case_tensors_outlive_the_handle(world: Any) -> None:
    gc.collect()
    peer = (world.rank + 1) % world.size
    free = torch.cuda.mem_get_info()[0]
    tensor, handle = symmetric_tensor(world, 1024)
    tensor.fill_(world.rank)
    handle.barrier()
    own = handle.get_buffer(world.rank, (1024,), torch.float32)[512:]
    peer_part = handle.get_buffer(peer, (512,), torch.float32, storage_offset=512).view(2, 256)
    remote = handle.get_remote_tensor(peer, (1024,), torch.float32)
    pad = handle.get_signal_pad(peer, dtype=torch.int32)
    dist.barrier(device_ids=[world.rank])
    del handle
    assert tensor.tolist() == [world.rank] * 1024
    del tensor
    gc.collect()
    dist.barrier(device_ids=[world.rank])
    assert own.add_(1).tolist() == [world.rank + 1] * 512
    dist.barrier(device_ids=[world.rank])
    assert peer_part.view(-1).tolist() == remote[512:].tolist() == [peer + 1] * 512
    assert pad.count_nonzero() == 0
    assert torch.cuda.mem_get_info()[0] < free  # `own` keeps this rank's buffer
    del own
    assert torch.cuda.mem_get_info()[0] == free
    dist.barrier(device_ids=[world.rank])


def case_signals(world: Any) -> None:
    tensor, handle = symmetric_tensor(world, 4)
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for channel in (0, 3):
        handle.get_buffer(after, (4,), torch.float32).fill_(world.rank + channel)
        handle.put_signal(after, channel)
        handle.wait_signal(before, channel)
        assert tensor.tolist() == [before + channel] * 4
        handle.barrier(channel)
    dist.barrier(device_ids=[world.rank])
    words = handle.get_signal_pad(world.rank)
    assert words.dtype == torch.uint32
    assert words.numel() == handle.signal_pad_size // 4
    assert words.view(torch.int32).count_nonzero() == 0
    dist.barrier(device_ids=[world.rank])
    # Set the signal words of the next rank directly, on channels 1 and 2.
    pad = handle.get_signal_pad(after, (3 * world.size,), torch.uint32)
    torch.ops.symm_mem.stream_write_value32_(pad, world.size + world.rank, 1)
    handle.wait_signal(before, channel=1)
    torch.ops.symm_mem.memset32_(pad, 2 * world.size + world.rank, 1, 1)
    handle.wait_signal(before, channel=2)
    with pytest.raises(RuntimeError, match="exceeded the numel of the input"):
        torch.ops.symm_mem.memset32_(pad, 3 * world.size, 1, 1)
    with pytest.raises(RuntimeError, match="maximum supported channel"):
        handle.barrier(handle.signal_pad_size // 4 // world.size)
    handle.barrier()


def case_signals_carry_the_senders_time(world: Any) -> None:
    _, handle = symmetric_tensor(world, 4)
    handle.barrier()
    if world.rank == 0:
        torch.cuda._sleep(int(1.41e9))  # 1 s
        handle.put_signal(1)
    elif world.rank == 1:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        handle.wait_signal(0)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) == pytest.approx(1000, rel=0.01)
    handle.barrier()


def case_ranks_wait_for_the_last_one_on_the_clock(world: Any) -> None:
    tensor, handle = symmetric_tensor(world, 4 * MIB)
    name = dist.group.WORLD.group_name

    def reduce() -> None:
        torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", name)

    def timed_ms(call: Callable[[], Any], *, late: bool = False) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        handle.barrier()  # all ranks are at the same virtual time
        start.record()
        if late and world.rank == 0:
            torch.cuda._sleep(int(1.41e9))  # 1 s
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    times_ms = [timed_ms(reduce), timed_ms(lambda: dist.all_reduce(tensor))]
    late_ms = [timed_ms(call, late=True) for call in (handle.barrier, reduce)]
    assert times_ms[0] > 0.01
    assert times_ms[0] == pytest.approx(times_ms[1], rel=0.2)  # as long as NCCL's
    assert late_ms == pytest.approx([1000, 1000], rel=0.01)


def case_signal_timeouts(world: Any) -> None:
    _, handle = symmetric_tensor(world, 4)
    failure = "CUDA error: unspecified launch failure"
    if world.rank == 0:
        with standard_error_discarded():
            with pytest.raises(torch.AcceleratorError, match=failure) as waited:
                handle.wait_signal(1, timeout_ms=200)
            handle.put_signal(1, channel=5)
            with pytest.raises(torch.AcceleratorError, match=failure) as put:
                handle.put_signal(1, channel=5, timeout_ms=200)
            with pytest.raises(torch.AcceleratorError, match=failure):
                handle.barrier(channel=7, timeout_ms=200)
        assert "wait_signal: rank 0 failed to receive signal from rank 1" in str(waited.value)
        assert "put_signal: rank 0 failed to send signal to rank 1 on channel 5" in str(put.value)
    dist.barrier(device_ids=[world.rank])


def case_argument_errors(world: Any) -> None:
    name = dist.group.WORLD.group_name
    ops = torch.ops.symm_mem
    buffer, handle = symmetric_tensor(world, 64)
    halves, _ = symmetric_tensor(world, 64, dtype=torch.bfloat16)
    words = handle.get_signal_pad(world.rank, (16,), torch.uint32)
    largest = handle.signal_pad_size // 4 // world.size - 1
    whole, part = torch.zeros(64, device="cuda"), torch.zeros(65, device="cuda")[1:]
    rejected: list[tuple[Callable[[], object], str]] = [
        (
            lambda: ops.one_shot_all_reduce_copy(
                buffer, torch.zeros(68, device="cuda"), "sum", name
            ),
            "local input size must be smaller than symm buffer size",
        ),
        (
            lambda: ops.one_shot_all_reduce(halves[:1], "sum", name),
            "input size must be at least 4-byte aligned",
        ),
        (
            lambda: ops.two_shot_all_reduce_out(buffer, "sum", name, part),
            "output alignment must be equal to or larger than input",
        ),
        (
            lambda: ops.one_shot_all_reduce_out(buffer, "sum", name, whole[:60]),
            "input/output size mismatch, input.sizes",
        ),
        (lambda: ops.memset32_(words, -1, 1, 1), "greater than or equal to 0 .got -1"),
        (lambda: ops.memset32_(words, 0, 1, 0), "count must be a positive integer .got 0"),
        (lambda: ops.memset32_(words, 0, -1, 1), "val must be in the range of"),
        (lambda: ops.memset32_(words, 0, 2**32, 1), "val must be in the range of"),
        (lambda: ops.memset32_(words, 10, 1, 7), "count .17. exceeded the numel .* .16"),
        (lambda: ops.stream_write_value32_(words, 16, 1), "offset .16. exceeded the numel"),
        (lambda: ops.memset32_(whole, 0, 1, 1), "must be a flat, contiguous uint32 tensor"),
        (lambda: handle.barrier(largest + 1), f"is {largest} .got {largest + 1}"),
        (lambda: handle.barrier(-1), "must be greater than 0 .got -1"),
        (lambda: handle.put_signal(world.size), f"rank must be in .0, {world.size}. .got"),
        (lambda: handle.wait_signal(-1), f"rank must be in .0, {world.size}. .got -1"),
    ]
    for call, text in rejected:
        with pytest.raises(RuntimeError, match=text):
            call()
    assert words.view(torch.int32).count_nonzero() == 0
    dist.barrier(device_ids=[world.rank])
    ops.memset32_(words, 9, 2**32 - 1, 7)
    assert words.view(torch.int32).tolist() == [0] * 9 + [-1] * 7
    ops.memset32_(words, 0, 0, 16)
    handle.barrier(largest)


def case_freeing_waits_for_the_work_of_the_device(world: Any) -> None:
    tensor = symm_mem.empty(4, device=world.device)
    event = torch.cuda.Event()
    torch.cuda._sleep(int(1.41e12))  # longer than the test runs
    event.record()
    assert not event.query()
    del tensor
    assert event.query()


def case_subgroups(world: Any) -> None:
    for size, group in world.own_groups():
        tensor = symm_mem.empty(4, device=world.device)
        handle = symm_mem.rendezvous(tensor, group)
        assert handle.world_size == size
        tensor.fill_(1)
        total = torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", group.group_name)
        assert total.tolist() == [size] * 4
    dist.barrier(device_ids=[world.rank])


def case_ranks_on_one_gpu_are_rejected(world: Any) -> None:
    tensor = symm_mem.empty(4, device="cuda:0")
    assert tensor.device == torch.device("cuda:0")
    with pytest.raises(RuntimeError, match="overlapping devices"):
        symm_mem.rendezvous(tensor, dist.group.WORLD)
    dist.barrier(device_ids=[world.rank])
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    try:
        tensor = symm_mem.empty(4, device="cuda:0")
        handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    finally:
        del os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"]
    handle.get_buffer((world.rank + 1) % world.size, (4,), torch.float32).fill_(world.rank)
    handle.barrier()
    assert tensor.tolist() == [(world.rank - 1) % world.size] * 4


def case_different_sizes_are_rejected(world: Any) -> None:
    tensor = symm_mem.empty(4 + world.rank, device=world.device)
    with pytest.raises(RuntimeError, match="sizes differ: rank 0 has a buffer of 16 bytes"):
        symm_mem.rendezvous(tensor, dist.group.WORLD)
    dist.barrier(device_ids=[world.rank])


def case_alloc_id_reuses_memory(world: Any) -> None:
    arguments: Any = ((4,), (1,), torch.float32, torch.device(world.device), "0")
    tensor = _SymmetricMemory.empty_strided_p2p(*arguments, alloc_id=42)
    address = tensor.data_ptr()
    with pytest.raises(RuntimeError, match="is still active"):
        _SymmetricMemory.empty_strided_p2p(*arguments, alloc_id=42)
    del tensor
    tensor = _SymmetricMemory.empty_strided_p2p(*arguments, alloc_id=42)
    assert tensor.data_ptr() == address
    assert _SymmetricMemory.rendezvous(tensor).world_size == world.size


def case_cuda_graphs(world: Any) -> None:
    name = dist.group.WORLD.group_name
    tensor, handle = symmetric_tensor(world, 16)
    peer = handle.get_buffer((world.rank + 1) % world.size, (16,), torch.float32)
    seen = torch.zeros(16, device="cuda")
    source = torch.zeros(16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        tensor.copy_(source)
        handle.barrier()
        seen.copy_(peer)
        total = torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", name)
        handle.barrier()
    for step in (1, 2):
        source.fill_(step * (world.rank + 1))
        graph.replay()
        assert seen.tolist() == [step * ((world.rank + 1) % world.size + 1)] * 16
        assert total.tolist() == [step * sum(range(1, world.size + 1))] * 16
    torch.cuda.synchronize()
    dist.barrier(device_ids=[world.rank])


def case_a_peer_that_ends(world: Any) -> None:
    _, handle = symmetric_tensor(world, 4)
    handle.barrier()
    last = world.size - 1
    if world.rank == last:
        os._exit(7)
    started = time.monotonic()
    with (
        standard_error_discarded(),
        pytest.raises(torch.AcceleratorError, match="launch failure") as raised,
    ):
        handle.wait_signal(last, channel=2)
    assert time.monotonic() - started < 20  # the group's timeout is 30 s
    lost = f"rank {world.rank} failed to receive signal from rank {last} on channel 2"
    assert f"{lost} because its process has ended" in str(raised.value)
