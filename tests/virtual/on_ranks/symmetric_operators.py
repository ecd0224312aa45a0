"""Operators on symmetric memory: sums, fused products, and what they reject."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from standard_error import standard_error_discarded
from symmetric import symmetric_tensor


def case_sums(world: Any) -> None:
    name = dist.group.WORLD.group_name
    ops = torch.ops.symm_mem
    for dtype in (torch.float32, torch.bfloat16):
        shape = (3 * world.size, 16)
        tensor, _ = symmetric_tensor(world, *shape, dtype=dtype)
        rows = [torch.arange(tensor.numel()).view(shape) % 7 + rank for rank in range(world.size)]
        mine = rows[world.rank].to(dtype).cuda()
        total = sum(rows).to(dtype).cuda()

        tensor.copy_(mine)
        assert ops.one_shot_all_reduce(tensor, "sum", name).equal(total)
        out = torch.zeros_like(total)
        ops.one_shot_all_reduce_out(tensor, "sum", name, out)
        assert out.equal(total)
        assert tensor.equal(mine)
        assert ops.one_shot_all_reduce_copy(tensor, mine * 2, "sum", name).equal(total * 2)

        tensor.copy_(mine)
        ops.two_shot_all_reduce_(tensor, "sum", name)
        assert tensor.equal(total)
        tensor.copy_(mine)
        out = torch.zeros_like(total)
        ops.two_shot_all_reduce_out(tensor, "sum", name, out)
        assert out.equal(total)

        tensor.copy_(mine)
        part = torch.empty(tensor.numel() // world.size, dtype=dtype, device="cuda")
        ops.reduce_scatter_out(tensor.view(-1), name, False, part)
        assert part.equal(total.view(-1).chunk(world.size)[world.rank])
        wide, _ = symmetric_tensor(world, 2, 16 * world.size, dtype=dtype)
        wide.fill_(world.rank + 1).mul_(torch.arange(wide.size(1), device="cuda").to(dtype) % 5)
        whole = ops.one_shot_all_reduce(wide, "sum", name)
        part = torch.empty(2, 16, dtype=dtype, device="cuda")
        ops.reduce_scatter_out(wide, name, True, part)
        assert part.equal(whole.chunk(world.size, 1)[world.rank])
        torch.cuda.synchronize()


def case_operator_errors(world: Any) -> None:
    name = dist.group.WORLD.group_name
    tensor, _ = symmetric_tensor(world, 64, dtype=torch.float16)
    with pytest.raises(NotImplementedError, match=r'"one_shot_all_reduce" not implemented for'):
        torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", name)
    with pytest.raises(RuntimeError, match="only sum is supported"):
        torch.ops.symm_mem.one_shot_all_reduce(tensor, "avg", name)
    with pytest.raises(RuntimeError, match="at least 4-byte aligned"):
        torch.ops.symm_mem.one_shot_all_reduce(tensor[1:], "sum", name)
    with pytest.raises(RuntimeError, match="multicast support is required"):
        torch.ops.symm_mem.multimem_all_reduce_(tensor, "sum", name)
    # PyTorch also warns here.
    with (
        standard_error_discarded(),
        pytest.raises(RuntimeError, match="allocated with empty_strided_p2p"),
    ):
        torch.ops.symm_mem.one_shot_all_reduce(torch.ones(64, device="cuda"), "sum", name)
    with pytest.raises(RuntimeError, match="does not find allocation backend NVSHMEM"):
        symm_mem.set_backend("NVSHMEM")
    symm_mem.set_backend("CUDA")


def case_three_ranks_have_no_unrolled_sum(world: Any) -> None:
    if world.rank < 3:
        group = world.groups[3]
        tensor = symm_mem.empty(64, device=world.device)
        symm_mem.rendezvous(tensor, group)
        with pytest.raises(RuntimeError, match="Not implemented for world_size=3"):
            torch.ops.symm_mem.two_shot_all_reduce_out(
                tensor, "sum", group.group_name, torch.empty_like(tensor)
            )
        tensor.fill_(1)
        torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", group.group_name)
        assert tensor.unique().tolist() == [3]
    dist.barrier(device_ids=[world.rank])


def case_fused_matmuls(world: Any) -> None:
    name = dist.group.WORLD.group_name
    torch.manual_seed(3)
    shards = [torch.rand(4, 8).double() for _ in range(world.size)]
    weights = [torch.rand(8, 6).double().cuda() for _ in range(2)]
    mine = shards[world.rank].cuda()
    gathered, products = torch.ops.symm_mem.fused_all_gather_matmul(mine, weights, 0, name)
    whole = torch.cat(shards).cuda()
    assert gathered.equal(whole)
    for product, weight in zip(products, weights, strict=True):
        torch.testing.assert_close(product, whole @ weight)

    left = torch.rand(world.size * 2, 8).double().cuda() + world.rank
    right = torch.rand(8, 6).double().cuda()
    scattered = torch.ops.symm_mem.fused_matmul_reduce_scatter(left, right, "sum", 0, name)
    total = left @ right
    dist.all_reduce(total)
    torch.testing.assert_close(scattered, total.chunk(world.size)[world.rank])

    tensor, _ = symmetric_tensor(world, 4, 4)
    tensor.fill_(world.rank)
    result = torch.ops.symm_mem._low_contention_all_gather(tensor, name)
    result = torch.ops._c10d_functional.wait_tensor(result)
    assert result.view(world.size, -1)[:, 0].tolist() == list(range(world.size))
    dist.barrier(device_ids=[world.rank])
