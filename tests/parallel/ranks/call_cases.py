"""What ranks do in `test_distributed.py`: calls in any number and order, and by some ranks only."""

from __future__ import annotations

import re
import statistics
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from on_ranks import TIME_LIMIT_SECONDS
from pair_of_models import Pair, full
from torch import nn
from trained_models import CLASSES, WIDTH, perceptron

import anyrig
from anyrig.errors import RankMismatchError
from anyrig.parallel.plans import Replicas, Shards
from anyrig.parallel.ranks.balance import Balance
from anyrig.parallel.ranks.exchange import Exchange, Phase
from anyrig.parallel.shares.shares import Shares
from anyrig.processes.group.membership import current_context


def case_two_calls_before_a_backward_pass() -> None:
    """Running statistics arrive between two backward passes, and no graph needs them."""
    for fused in (False, True):
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        pair = Pair(net, loss=nn.MSELoss() if fused else None)
        for _ in range(2):
            x = torch.randn(3, 4, device=pair.device)
            given = {"target": torch.zeros(3, 2, device=pair.device)} if fused else {}
            pair.model.refresh()  # has no effect over ranks
            (pair.model(x, **given) + pair.model(2 * x, **given)).sum().backward()


def case_numbers_of_batches_that_differ() -> None:
    for fused in (False, True):
        criterion = nn.CrossEntropyLoss()
        pair = Pair(
            nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6).eval(), nn.Linear(6, CLASSES)),
            loss=criterion if fused else None,
        )
        counts = [2 + (3 * rank) % 4 for rank in range(pair.ranks)]
        batches = [
            [2 + (rank + step) % 3 if step < counts[rank] else 0 for rank in range(pair.ranks)]
            for step in range(max(counts))
        ]
        data = [
            (
                torch.randn(sum(rows), 4, device=pair.device),
                torch.randint(CLASSES, (sum(rows),), device=pair.device),
            )
            for rows in batches
        ]
        its = torch.optim.SGD(pair.one.parameters(), 0.1)
        for step, (x, y) in enumerate(data):
            criterion(pair.one(x), y).backward()
            if step % 2:
                its.step()
                its.zero_grad()
        ours = torch.optim.SGD(pair.model.parameters(), 0.1)
        with pair.model.join():
            for step in range(counts[pair.rank]):
                x, y = pair.mine(batches[step], *data[step])
                with nullcontext() if step % 2 else pair.model.no_sync():
                    loss = pair.model(x, target=y) if fused else criterion(pair.model(x), y)
                    loss.backward()
                if step % 2:
                    ours.step()
                    ours.zero_grad()
        pair.assert_same()
        if counts[pair.rank] < max(counts):  # calls without samples leave no gradients
            assert all(parameter.grad is None for parameter in pair.model.parameters())


def case_no_batches_at_all() -> None:
    model = anyrig.spread(nn.Linear(2, 2).to(anyrig.Rig.detect().lead.torch_device))
    with model.join():
        pass


def case_nothing_is_reduced_in_no_sync() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    for plan in (Replicas(), Shards()):
        model = anyrig.spread(nn.Linear(2, 2).to(device), plan=plan)
        x = torch.full((1, 2), 1.0 + dist.get_rank())
        with model.no_sync():
            output = model(x)
        output.sum().backward()  # `no_sync` holds for forwards that were called in its block
        kept = model.weight.grad
        assert kept is None if isinstance(plan, Shards) else (kept == 1.0 + dist.get_rank()).all()
        model(x).sum().backward()
        sum_of_means = 1.0 + dist.get_world_size()
        assert (full(model.weight.grad) == sum_of_means).all(), model.weight.grad


def case_nothing_is_exchanged_without_gradients() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    model = anyrig.spread(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(device))
    if dist.get_rank() == 0:  # the others do not call the model
        with torch.no_grad():
            assert model(torch.ones(3, 2)).shape == (3, 2)
            assert model(torch.ones(0, 2)).shape == (0, 2)
        model.eval()
        assert model(torch.ones(3, 2)).requires_grad


def case_a_forward_on_one_rank_alone_changes_nothing() -> None:
    """Call the model on one rank, in training mode: before, between and after steps."""
    pair = Pair(perceptron(), loss=None)
    alone = partial(pair.model, torch.randn(7, WIDTH, device=pair.device))
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (pair.model, pair.one)]
    pair.model(torch.ones(1, WIDTH)).sum().backward()
    pair.model.zero_grad()
    if pair.rank == 1:
        alone()  # in this forward, stock DDP would rebuild its buckets, with all ranks
    anyrig.barrier(timeout_seconds=20)
    for step in range(4):
        if pair.rank == step % 2:
            alone()
        anyrig.barrier(timeout_seconds=20)  # the rank that called the model did not wait
        for micro_batch in range(2):
            rows = [1 + (rank + micro_batch) % 3 for rank in range(pair.ranks)]
            x = torch.randn(sum(rows), WIDTH, device=pair.device)
            pair.one(x).square().mean().backward()
            with pair.model.no_sync() if micro_batch == 0 else nullcontext():
                loss = pair.model(*pair.mine(rows, x)).square().mean()
            if pair.rank == 0 and step:
                alone()
            loss.backward()
        if pair.rank == 1:
            alone()
        pair.assert_same("gradients")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    pair.assert_same()


def case_a_forward_alone_moves_statistics_of_its_rank_as_in_one_process() -> None:
    pair = Pair(nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4)))
    for _ in range(2):
        previewed, x = (torch.randn(5, WIDTH, device=pair.device) for _ in range(2))
        if pair.rank == 0:
            pair.model(previewed)
        pair.one(previewed)
        pair.one(x)  # all ranks get rank 0's statistics
        pair.model(x).sum().backward()
        for (name, mine), its in zip(pair.module.named_buffers(), pair.one.buffers(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-9, atol=0, msg=name)
        assert pair.model.state_dict()["1.num_batches_tracked"] == pair.one[1].num_batches_tracked


def case_several_forwards_then_several_backwards() -> None:
    """A discriminator is called like this, on true and on generated images."""
    pair = Pair(perceptron())
    rows = [1 + 2 * rank for rank in range(pair.ranks)]
    for _ in range(3):
        true, false = (torch.randn(sum(rows), WIDTH, device=pair.device) for _ in range(2))
        for each in (true, false):
            pair.one(each).square().mean().backward()
        outputs = [pair.model(*pair.mine(rows, each)) for each in (true, false)]
        for output in outputs:
            output.square().mean().backward()
        pair.assert_same("gradients")
        outputs = [pair.model(*pair.mine(rows, each)) for each in (true, false)]
        for each in (pair.model, pair.one):
            each.zero_grad()
        sum(output.square().mean() for output in outputs).backward()  # both in one pass
        for each in (true, false):
            pair.one(each).square().mean().backward()
        pair.assert_same("gradients")
        pair.one.zero_grad()
        pair.model.zero_grad()


def case_ranks_that_come_to_different_calls_are_named() -> None:
    """If one rank computes a global loss, or calls a model in shards, all ranks raise."""
    rank = dist.get_rank()
    started = time.monotonic()
    x = torch.ones(2, WIDTH)
    y = torch.zeros(2, dtype=torch.long, device=anyrig.Rig.detect().lead.torch_device)
    words = r"rank 0 came to forward 3 of spread model \d+, while ranks? 1.* came to the backward"
    words_of_modes = r"forward 1 of .* forward 1 without gradients of"  # of the same forward
    for plan in (Replicas(), Shards()):
        for with_loss in (True, False) if isinstance(plan, Shards) else (True,):
            loss = nn.CrossEntropyLoss() if with_loss else None
            module = perceptron().to(anyrig.Rig.detect().lead.torch_device)
            model = anyrig.spread(module, plan=plan, loss=loss)
            given = {"target": y} if with_loss else {}
            refusal_of_modes = pytest.raises(RankMismatchError, match=words_of_modes)
            with torch.set_grad_enabled(rank == 0), refusal_of_modes:
                model(x, **given)
            if rank == 0:
                model(x, **given)
            with pytest.raises(RankMismatchError, match=words) as error:
                model(x, **given).sum().backward()
            # On a GPU the backward pass has threads of its own.
            assert re.search(rf"rank {rank} is at call_cases\.py:\d+ in case", str(error.value))
    assert time.monotonic() - started < TIME_LIMIT_SECONDS


def case_a_barrier_while_another_rank_is_in_a_backward_pass() -> None:
    """Both raise at once, even on GPUs, whose backward passes have threads of their own."""
    model = anyrig.spread(perceptron().to(anyrig.Rig.detect().lead.torch_device))
    started = time.monotonic()
    place = r"\(call_cases\.py:\d+ in case_a_barrier_while_another"
    if dist.get_rank() == 0:
        backward = f"rank 0 waits at the backward pass of a forward of spread model .* {place}"
        loss = model(torch.ones(2, WIDTH)).sum()
        with pytest.raises(RankMismatchError, match=f"{backward}.*last reached a barrier"):
            loss.backward()
        dist.barrier()
        anyrig.barrier()  # which the other ranks have reached already
    else:
        came = "last reached the backward pass of .* at call_cases"
        with pytest.raises(RankMismatchError, match=f"waits at a barrier {place}.*rank 0 {came}"):
            anyrig.barrier()
        Exchange(model._engine._run.context, model._engine._run.number, 2).meet(
            Phase.BACKWARD
        )  # what rank 0 began
        dist.barrier()
    assert time.monotonic() - started < TIME_LIMIT_SECONDS


def case_evaluation_mode_learns_too() -> None:
    pair = Pair(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).eval())
    rows = [1 + rank for rank in range(pair.ranks)]
    x = torch.randn(sum(rows), 4, device=pair.device)
    pair.one(x).square().mean().backward()
    pair.model(*pair.mine(rows, x)).square().mean().backward()
    pair.assert_same("gradients")


def case_steps_are_timed_without_waiting() -> None:
    told: list[tuple[int, float]] = []
    of_models: list[list[tuple[int, float]]] = []

    class Measuring(Balance):
        held = False

        def report(self, samples: int, seconds: float) -> None:
            told.append((samples, seconds))

    context = current_context()
    fake = Measuring(context.group, Shares((1.0,) * context.group.world_size, "for a test"))
    before, context.balance = context.balance, fake
    try:
        import time

        device = anyrig.Rig.detect().lead.torch_device
        loss = nn.MSELoss()
        for fused in (False, True):
            model = anyrig.spread(perceptron().to(device), loss=loss if fused else None)
            for _ in range(4):
                if dist.get_rank() == 0:
                    time.sleep(0.25)  # the others wait for it
                x, y = torch.ones(2, WIDTH), torch.ones(2, CLASSES, device=device)
                (model(x, target=y) if fused else loss(model(x), y)).backward()
            of_models.append(told[:])
            told.clear()
    finally:
        context.balance = before
    for steps in of_models:
        assert len(steps) >= 3  # of four: the last may be known later
        # In the second step DDP arranges its buckets, all ranks together.
        short = [seconds for rows, seconds in steps[:1] + steps[2:] if rows == 2]
        assert len(short) == len(steps) - 1
        # On a busy machine, a single step may take long.
        assert 0 < statistics.median_low(short) < 0.2, steps
