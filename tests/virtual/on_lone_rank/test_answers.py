"""What rank 0 knows of ranks that are like it: sums, lists and objects, on the CPU and on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from anyrig.errors import ValueNeededError

pytestmark = pytest.mark.usefixtures("group")

RANKS = 16
Op = dist.ReduceOp
# Their names until PyTorch 2.12.
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@pytest.fixture(params=["cpu", "cuda"])
def three(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """Return a function that makes a tensor of threes with a size."""

    def make(*size: int) -> Tensor:
        return torch.full(size, 3, device=request.param)

    return make


def row() -> Tensor:
    return torch.arange(RANKS)


@pytest.mark.parametrize(
    ("op", "expected"),
    [(Op.SUM, 48), (Op.MAX, 3), (Op.MIN, 3), (Op.PRODUCT, 3**16)],
    ids=["sum", "max", "min", "product"],
)
def test_every_rank_adds_what_this_one_does(
    three: Callable[..., Tensor], op: Op, expected: int
) -> None:
    tensor = three(2)
    dist.all_reduce(tensor, op)
    assert tensor.tolist() == [expected] * 2
    tensor = three()
    work = dist.all_reduce(tensor, op, async_op=True)
    assert work is not None
    work.wait()
    assert work.is_completed()
    assert tensor.item() == expected
    tensor = three()
    dist.reduce(tensor, 0, op)
    assert tensor.item() == expected
    part = three(2)
    scatter_single(part, three(2 * RANKS), op)
    assert part.tolist() == [expected] * 2
    dist.reduce_scatter(part, [three(2) for _ in range(RANKS)], op)
    assert part.tolist() == [expected] * 2


def test_every_rank_sends_what_this_one_does(three: Callable[..., Tensor]) -> None:
    gathered = [three(2).zero_() for _ in range(RANKS)]
    dist.all_gather(gathered, three(2))
    assert torch.stack(gathered).tolist() == [[3, 3]] * RANKS
    whole = three(2 * RANKS).zero_()
    gather_single(whole, three(2))
    assert whole.tolist() == [3] * 2 * RANKS
    dist.gather(three(2), gathered)
    assert torch.stack(gathered).tolist() == [[3, 3]] * RANKS
    dist.all_to_all_single(whole, three(2 * RANKS))
    assert whole.tolist() == [3] * 2 * RANKS


def test_each_rank_gets_its_own_part() -> None:
    for device in ("cpu", "cuda"):
        own = torch.full((1,), -1, device=device)
        dist.scatter(own, list(row().to(device).split(1)))
        assert own.tolist() == [0]
        received = torch.full((RANKS,), -1, device=device)
        dist.all_to_all_single(received, 7 + row().to(device))
        assert received.tolist() == [7] * RANKS
        parts = list(received.zero_().split(1))
        dist.all_to_all(parts, list((7 + row()).to(device).split(1)))
        assert received.tolist() == [7] * RANKS
        own = torch.tensor([5], device=device)
        dist.broadcast(own, 0)
        assert own.tolist() == [5]
        dist.reduce(own, 3)
        assert own.tolist() == [5]
        dist.gather(own, dst=3)


def test_sums_of_low_precision_round_after_each_rank() -> None:
    part = torch.full((1,), 1.015625, dtype=torch.bfloat16)
    expected = part.clone()
    for _ in range(RANKS - 1):
        expected += part
    tensor = part.cuda()
    dist.all_reduce(tensor)
    assert tensor.tolist() == expected.tolist() != (RANKS * part).tolist()
    tensor = torch.full((1,), 5.0, device="cuda")
    dist.all_reduce(tensor, Op.AVG)
    assert tensor.tolist() == [5.0]


def test_barriers_do_not_wait() -> None:
    dist.barrier()
    dist.barrier(group=dist.new_group(backend="gloo"))
    dist.monitored_barrier(dist.new_group(backend="gloo"), timeout=timedelta(seconds=5))


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_objects(backend: str) -> None:
    group = dist.new_group(backend=backend)
    gathered: list[object] = [None] * RANKS
    dist.all_gather_object(gathered, {"rank": 0}, group)
    assert gathered == [{"rank": 0}] * RANKS
    dist.gather_object("a", gathered, 0, group)
    assert gathered == ["a"] * RANKS
    sent: list[object] = [1, "b"]
    dist.broadcast_object_list(sent, 0, group)
    assert sent == [1, "b"]
    own: list[object] = [None]
    dist.scatter_object_list(own, list(range(5, 5 + RANKS)), 0, group)
    assert own == [5]


def test_groups_of_some_ranks() -> None:
    assert dist.get_world_size(dist.new_group([0, 8])) == 2
    assert dist.new_group([1, 9]) == dist.GroupMember.NON_GROUP_MEMBER
    mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicas", "shards"))
    ones = torch.ones(1, device="cuda")
    dist.all_reduce(ones, group=mesh["shards"].get_group())
    dist.all_reduce(ones, group=mesh["replicas"].get_group())
    assert ones.tolist() == [16.0]


def test_what_another_rank_sends_is_unknown_on_a_gpu() -> None:
    tensor = torch.zeros(3, device="cuda")
    dist.broadcast(tensor, 3)
    remedy = "another rank, and this .*alone.*Let rank 0 send them, or rehearse fewer ranks"
    with pytest.raises(ValueNeededError, match=remedy):
        tensor.tolist()
    tensor.zero_()
    dist.scatter(tensor, src=3)
    with pytest.raises(ValueNeededError, match="another rank"):
        tensor.tolist()
    assert tensor.zero_().tolist() == [0.0] * 3


def test_an_unknown_tensor_stays_unknown() -> None:
    tensor = torch.randn(3, device="cuda")
    dist.all_reduce(tensor)
    with pytest.raises(ValueNeededError):
        tensor.tolist()
