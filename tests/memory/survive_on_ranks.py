"""`survive` over four ranks: DDP, FSDP2 and spread models, with one virtual GPU per rank."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from settled import bytes_above
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anyrig
from anyrig.errors import MemoryTrackingError, OtherRankError, RankMismatchError
from anyrig.memory import survive
from anyrig.memory.torch_versions import fsdp_undoes_failed_steps

RANKS = 4
# The kinds of models that FSDP2 wraps.
SHARDED = ("fsdp", "spread in shards")


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(6, 8), nn.GELU())
    net: Any = nn.Sequential(block, nn.Linear(8, 3)).cuda()
    if kind == "fsdp":
        fully_shard(block)
        fully_shard(net)
    elif kind == "ddp":
        net = DistributedDataParallel(net, gradient_as_bucket_view=True)
    elif kind == "spread":
        net = anyrig.spread(net, loss=nn.CrossEntropyLoss())
    elif kind == "spread in shards":
        net = anyrig.spread(net, plan=anyrig.Shards())
    return net


def loss_with(net: nn.Module, kind: str) -> Any:
    if kind == "spread":
        return lambda x, y: net(x, target=y)
    return lambda x, y: nn.functional.cross_entropy(net(x), y)


def batch(samples: int | None = None) -> tuple[Tensor, Tensor]:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    samples = 4 + rank if samples is None else samples
    return torch.randn(samples, 6).cuda(), torch.randint(3, (samples,)).cuda()


def gradients(net: nn.Module) -> list[Tensor]:
    """Return this rank's gradients on the host, whose copies allocate nothing on the GPU."""
    found: list[Any] = [each.grad for each in net.parameters() if each.grad is not None]
    return [(grad.to_local() if hasattr(grad, "to_local") else grad).cpu() for grad in found]


def fail_allocation(number: int) -> None:
    from anyrig.virtual.build import load_extension

    load_extension().fail_allocation(number, dist.get_rank())


def check(net: nn.Module, expected: list[Tensor]) -> None:
    found = gradients(net)
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def every_allocation(kind: str, stride: int = 1, new: int | None = None, most: int = 999) -> None:
    """Fail each allocation of a step in turn, on one rank after the other.

    Args:
        kind: see `build`.
        stride: fail the first of so many allocations, to save time.
        new: the number of steps before, of a new model each time; None for two steps of one model.
        most: the last allocation to fail.
    """
    x, y = batch()
    net = build(kind)
    step = survive(loss_with(net, kind))
    for _ in range(2):
        expected_loss = step(x, y).item()
        expected = gradients(net)
        net.zero_grad()
    gc.collect()
    before = torch.cuda.memory_allocated()
    number, tries, survived = 1 - stride, 0, 0
    while survived == tries and number + stride <= most:
        number, tries = number + stride, tries + 1
        if new is not None:
            net = build(kind)
            step = survive(loss_with(net, kind))
            for _ in range(new):
                step(x, y)
                net.zero_grad()
            gc.collect()
        step.largest_part = None
        if dist.get_rank() == tries % RANKS:
            fail_allocation(number)
        for _ in range(1 if new is None else 3):
            loss = step(x, y)
            fail_allocation(0)
            check(net, expected)
            assert abs(loss.item() - expected_loss) < 1e-9
            net.zero_grad()
            del loss
        gc.collect()
        survived += step.largest_part is not None
        if new is None:
            assert bytes_above(before) == 0
    assert number >= min(most, 10)


def possible(*kinds: str) -> Iterator[str]:
    """Yield the kinds of models whose failed steps this PyTorch can undo."""
    return (kind for kind in kinds if kind not in SHARDED or fsdp_undoes_failed_steps())


def refused_before_2_13(kind: str, case: Callable[[], None]) -> Callable[[], None]:
    """Return a case of a kind of models, or one that finds the kind refused."""

    def is_refused() -> None:
        error = error_of(survive, loss_with(build(kind), kind))
        assert isinstance(error, MemoryTrackingError)
        assert "cannot undo a failed step; install torch 2.13 or newer" in str(error)

    return case if [*possible(kind)] else is_refused


def nothing_is_leaked_if_a_step_cannot_be_divided() -> None:
    x, y = batch(1)
    for kind in possible("ddp", "fsdp"):
        net = build(kind)
        step = survive(loss_with(net, kind))
        for _ in range(2):
            step(x, y)
            net.zero_grad()
        gc.collect()
        before = torch.cuda.memory_allocated()
        for number in range(1, 20, 2):
            if dist.get_rank() == number % RANKS:
                fail_allocation(number)
            with suppress(torch.OutOfMemoryError, OtherRankError):
                step(x, y)
            fail_allocation(0)
            net.zero_grad()
            gc.collect()
            above = bytes_above(before)
            assert above <= 0, (kind, number, above)


def several_ranks_fail_at_once() -> None:
    for kind in possible("ddp", "fsdp", "spread"):
        net = build(kind)
        loss_of = loss_with(net, kind)
        loss_of(*batch()).backward()
        expected = gradients(net)
        net.zero_grad()
        step = survive(loss_of)
        if dist.get_rank() in (1, 2):
            fail_allocation(6 + dist.get_rank())
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            step(*batch())
        fail_allocation(0)
        check(net, expected)
        assert step.largest_part == (4 + dist.get_rank() + 1) // 2
        texts = [str(each.message) for each in warned if each.category is RuntimeWarning]
        if dist.get_rank() == 0:
            assert len(texts) == 1
            assert texts[0].startswith("a step of 4 samples ran out of memory on rank")
        else:
            assert not texts


def ddp_orders_its_buckets_by_gradients_again() -> None:
    net: Any = build("ddp")
    step = survive(loss_with(net, "ddp"))
    orders = []
    for number in (0, 0, 3, 0, 0, 0):
        if dist.get_rank() == 0:
            fail_allocation(number)
        step(*batch())
        net.zero_grad()
        orders.append(net._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices"))
    assert step.largest_part is not None
    assert "0 1 2 3" in orders
    assert orders[-1] == "3 2 1 0", orders


def gradients_of_earlier_steps_are_kept() -> None:
    for kind in possible("ddp", "fsdp"):
        net = build(kind)
        loss_of = loss_with(net, kind)
        for _ in range(2):
            loss_of(*batch()).backward()
        expected = gradients(net)
        net.zero_grad()
        step = survive(loss_of)
        step(*batch())
        if dist.get_rank() == 3:
            fail_allocation(9)
        step(*batch())
        assert step.largest_part is not None
        check(net, expected)


def error_of(call: Callable[..., object], *args: Any) -> Any:
    try:
        call(*args)
    except Exception as error:
        return error
    raise AssertionError("no error")


def other_errors_reach_all_ranks() -> None:
    net = build("ddp")
    criterion = nn.CrossEntropyLoss()

    def loss_of(x: Tensor, y: Tensor, fails: bool) -> Tensor:
        loss = criterion(net(x), y)
        if fails:
            raise KeyError("label")
        return loss

    step = survive(loss_of)
    errors = []
    for allocation in (1, 0):  # first, rank 1 runs out of memory before the same collective
        x, y = batch()
        if dist.get_rank() == 1:
            fail_allocation(allocation)
        errors.append(error_of(step, x, y, dist.get_rank() == 2))
        fail_allocation(0)
    step(*batch(), False)  # the next step works
    assert len(gradients(net)) == 4
    for error in errors:
        if dist.get_rank() == 2:
            assert repr(error) == "KeyError('label')"
        else:
            assert isinstance(error, OtherRankError)
            assert "because rank 2 failed" in str(error)


def a_step_that_cannot_be_divided_fails_on_all_ranks() -> None:
    net = build("ddp")
    step = survive(loss_with(net, "ddp"))
    if dist.get_rank() == 1:
        fail_allocation(3)
    error = error_of(step, *batch(1 if dist.get_rank() == 0 else 6))
    if dist.get_rank() == 1:
        assert isinstance(error, torch.OutOfMemoryError)
        assert "could not divide the step further" in str(getattr(error, "__notes__", error.args))
    else:
        assert isinstance(error, OtherRankError)
        assert str(error).startswith("rank 1 ran out of memory, and the step cannot be divided")
    assert not gradients(net)
    step(*batch())
    assert len(gradients(net)) == 4


def different_collectives_are_an_error() -> None:
    def loss_of(x: Tensor) -> Tensor:
        if dist.get_rank() == 1:
            dist.all_reduce(x)
        return x.sum().detach().requires_grad_()

    error = error_of(survive(loss_of), torch.ones(4).cuda())
    assert isinstance(error, RankMismatchError)
    assert "ranks 0, 2, 3 ended the step, while rank 1 called a collective" in str(error)


def messages_and_static_graphs_are_refused() -> None:
    def loss_of(x: Tensor) -> Tensor:
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.all_reduce(x)
        return x.sum()

    error = error_of(survive(loss_of), torch.ones(4).cuda())
    if dist.get_rank() == 0:
        assert isinstance(error, MemoryTrackingError)
        assert "sends tensors from rank to rank" in str(error)
    else:
        assert isinstance(error, OtherRankError)
    net = DistributedDataParallel(nn.Linear(2, 2).cuda(), static_graph=True)
    assert "static_graph=True learns" in str(error_of(survive, net))


def parts_are_as_small_as_asked_on_every_rank() -> None:
    net = build("ddp")
    loss_of = loss_with(net, "ddp")
    sizes = []

    def noted(x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        return loss_of(x, y)

    survive(noted, largest_part=2)(*batch())  # of 4 to 7 samples
    assert max(sizes) <= 2
    assert (sum(sizes), len(sizes)) == (4 + dist.get_rank(), 4)


CASES = {
    "parts as small as asked": parts_are_as_small_as_asked_on_every_rank,
    "several ranks fail at once": several_ranks_fail_at_once,
    "order of buckets": ddp_orders_its_buckets_by_gradients_again,
    "gradients of earlier steps": gradients_of_earlier_steps_are_kept,
    "other errors": other_errors_reach_all_ranks,
    "not divisible": a_step_that_cannot_be_divided_fails_on_all_ranks,
    "different collectives": different_collectives_are_an_error,
    "refused": messages_and_static_graphs_are_refused,
    "no leak": nothing_is_leaked_if_a_step_cannot_be_divided,
    "ddp": lambda: every_allocation("ddp"),
    "ddp orders its buckets": lambda: every_allocation("ddp", new=1, most=8),
    "fsdp": refused_before_2_13("fsdp", lambda: every_allocation("fsdp")),
    "fsdp's first step": refused_before_2_13(
        "fsdp", lambda: every_allocation("fsdp", stride=7, new=0)
    ),
    "spread": lambda: every_allocation("spread", stride=3),
    "spread in shards": refused_before_2_13(
        "spread in shards", lambda: every_allocation("spread in shards", stride=6)
    ),
}
