"""What ranks do in `test_distributed.py`: gradients weighted by samples, late and through hooks."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from learning_cases import STEPS
from pair_of_models import UNUSED, Pair
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import functional
from trained_models import CLASSES, WIDTH, perceptron

from anyrig.errors import RankMismatchError, SpreadError
from anyrig.parallel.plans import Replicas


def case_terms_of_parameters_have_no_weight() -> None:
    pair = Pair(perceptron())
    rows = [1 + 3 * rank for rank in range(pair.ranks)]
    x = torch.randn(sum(rows), WIDTH, device=pair.device)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean() + 0.1 * sum(p.square().sum() for p in model.parameters())

    loss(pair.one, x).backward()
    loss(pair.model, *pair.mine(rows, x)).backward()
    pair.assert_same("gradients")


def _learn_with_late_weights(pair: Pair) -> None:
    """Take a step with uneven samples, after which buckets are weighted."""
    rows = [1 + rank for rank in range(pair.ranks)]
    pair.model(*pair.mine(rows, torch.randn(sum(rows), WIDTH))).square().mean().backward()
    pair.model.zero_grad()
    assert pair.model._engine._run.passes._weights_buckets


def case_weights_that_come_with_the_reduction_are_those_of_the_samples() -> None:
    """Losses with terms of parameters, kept gradients, several forwards, hooks, empty ranks."""
    pair = Pair(perceptron(), plan=Replicas(ddp={"bucket_cap_mb": 1e-4}))
    _learn_with_late_weights(pair)
    uneven = [1 + 3 * rank for rank in range(pair.ranks)]
    other = [2 * pair.ranks - rank for rank in range(pair.ranks)]
    empty = [0] + [2 + rank for rank in range(pair.ranks - 1)]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    def term(model: nn.Module, x: Tensor) -> Tensor:
        return loss(model, x) + 0.1 * sum(p.square().sum() for p in model.parameters())

    def compare(steps: list[tuple[Any, list[list[int]]]]) -> None:
        """Make a backward pass for each of `steps`, from a forward for each list of samples."""
        for function, rows_of_forwards in steps:
            batches = [torch.randn(sum(rows), WIDTH) for rows in rows_of_forwards]
            batches = [each.to(pair.device) for each in batches]
            sum(function(pair.one, x) for x in batches).backward()
            mine = [pair.mine(r, x)[0] for r, x in zip(rows_of_forwards, batches, strict=True)]
            sum(function(pair.model, x) for x in mine).backward()
        pair.assert_same("gradients")
        pair.model.zero_grad()
        pair.one.zero_grad()

    compare([(loss, [uneven])])
    compare([(term, [uneven])])
    compare([(loss, [uneven]), (loss, [other]), (term, [empty])])  # gradients are kept
    compare([(loss, [uneven, other])])  # two forwards, one backward pass
    compare([(loss, [uneven, empty])])
    compare([(loss, [empty, uneven])])
    compare([(loss, [empty])])
    with pair.model.no_sync():
        x = torch.randn(sum(other), WIDTH, device=pair.device)
        loss(pair.one, x).backward()
        loss(pair.model, *pair.mine(other, x)).backward()
    compare([(loss, [uneven])])
    # The input's gradient is that of this rank's own loss.
    x = torch.randn(uneven[pair.rank], WIDTH, device=pair.device, requires_grad=True)
    alone = x.detach().clone().requires_grad_()
    loss(pair.model, x).backward()
    loss(pair.one, alone).backward()
    torch.testing.assert_close(x.grad, alone.grad, rtol=1e-9, atol=0)
    # A parameter's hook sees the gradient of the global batch.
    torch.manual_seed(1)  # the ranks have drawn different numbers of inputs
    pair.model.zero_grad()
    pair.one.zero_grad()
    for module in (pair.module, pair.one):
        next(module.parameters()).register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    compare([(loss, [uneven]), (term, [other])])


def case_a_hook_that_comes_late_gets_weighted_buckets() -> None:
    pair = Pair(perceptron(), plan=Replicas(ddp={"bucket_cap_mb": 1e-4}))
    _learn_with_late_weights(pair)
    seen: list[int] = []
    pair.model.register_comm_hook(seen, mean_over_the_ranks)
    for rows in ([1 + 3 * rank for rank in range(pair.ranks)], [2] * pair.ranks):
        x = torch.randn(sum(rows), WIDTH, device=pair.device)
        pair.one.zero_grad()
        pair.model.zero_grad()
        pair.one(x).square().mean().backward()
        pair.model(*pair.mine(rows, x)).square().mean().backward()
        pair.assert_same("gradients")
    assert sum(seen) == 2 * len(list(pair.one.parameters()))
    with pytest.raises(RuntimeError, match="only be called once"):
        pair.model.register_comm_hook(seen, mean_over_the_ranks)


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ArithmeticError


def case_a_pass_that_failed_leaves_no_weight_to_the_next() -> None:
    pair = Pair(perceptron())
    _learn_with_late_weights(pair)
    rows = [2 + 3 * rank for rank in range(pair.ranks)]
    x = torch.randn(sum(rows), WIDTH, device=pair.device)
    (mine,) = pair.mine(rows, x)
    given = mine.clone().requires_grad_()
    with pytest.raises(ArithmeticError):
        torch.autograd.grad(pair.model(_FailsBackward.apply(given)).sum(), given)
    for parameter in pair.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    pair.one(x).square().mean().backward()
    pair.model(mine).square().mean().backward()
    pair.assert_same("gradients")


def case_ranks_with_late_weights_that_differ_raise() -> None:
    """They raise before DDP's collectives could mix, like ranks that wait before `backward()`."""
    pairs = [Pair(perceptron()) for _ in range(2)]
    for pair in pairs:
        _learn_with_late_weights(pair)
    model = pairs[pairs[0].rank % 2].model
    output = model(torch.ones(1 + pairs[0].rank, WIDTH, device=pairs[0].device))
    with pytest.raises(RankMismatchError, match="came to the backward pass"):
        output.sum().backward()


def case_parameters_without_a_gradient_have_none_as_on_one_device() -> None:
    """A parameter that no rank uses keeps `.grad`; ranks that differ in this are named."""
    for options in ({}, UNUSED):
        pair = Pair(nn.ModuleList([nn.Linear(2, 2) for _ in range(4)]), **options)
        for module in (pair.module, pair.one):
            module.forward = lambda x, module=module: module[3](module[0](x))
        for _ in range(2):
            rows = [1 + rank for rank in range(pair.ranks)]
            x = torch.randn(sum(rows), 2, device=pair.device)
            pair.one(x).square().mean().backward()
            pair.model(*pair.mine(rows, x)).square().mean().backward()
            for (name, ours), its in zip(
                pair.model.named_parameters(), pair.one.parameters(), strict=True
            ):
                assert (ours.grad is None) == (its.grad is None), name
                if its.grad is not None:
                    torch.testing.assert_close(ours.grad, its.grad, rtol=1e-9, atol=1e-12)
        pair.model.zero_grad()
        pair.one.zero_grad()
        x = torch.ones(2, 2, device=pair.device)
        pair.module.forward = lambda x, pair=pair: pair.module[pair.rank](x)
        if options:
            pair.model(x).sum().backward()
            used = [p.grad is not None for p in pair.model.parameters()]
            assert used == [index < pair.ranks for index in range(4) for _ in range(2)]
        else:
            words = r"ranks differ in which parameters have no gradient .*find_unused_parameters"
            with pytest.raises(SpreadError, match=words):
                pair.model(x).sum().backward()


def case_models_follow_each_other() -> None:
    """The gradient passes both models and is weighted once, and so is the input's gradient."""
    for fused, late in itertools.product((False, True), repeat=2):
        encoder = Pair(nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh()))
        if late:
            _learn_with_late_weights(encoder)
        decoder = Pair(nn.Linear(6, CLASSES), loss=nn.CrossEntropyLoss() if fused else None)
        rows = [2 + 3 * rank for rank in range(encoder.ranks)]
        x = torch.randn(sum(rows), WIDTH, device=encoder.device)
        y = torch.randint(CLASSES, (sum(rows),), device=encoder.device)
        whole = x.clone().requires_grad_()
        hidden = encoder.one(whole)
        # The loss that is computed from the hidden values alone is each rank's own.
        (functional.cross_entropy(decoder.one(hidden), y) + hidden.square().mean()).backward()
        mine, target = encoder.mine(rows, x, y)
        mine = mine.clone().requires_grad_()
        hidden = encoder.model(mine)
        if fused:
            loss = decoder.model(hidden * 1.0, target=target)
        else:
            loss = functional.cross_entropy(decoder.model(hidden * 1.0), target)
        (loss + hidden.square().mean()).backward()
        encoder.assert_same("gradients")
        decoder.assert_same("gradients")
        (expected,) = encoder.mine(rows, whole.grad)
        scale = 1.0 if fused else sum(rows) / rows[encoder.rank]
        torch.testing.assert_close(mine.grad, scale * expected, rtol=1e-9, atol=1e-15)
        prompt = torch.randn(1, 6, device=encoder.device, requires_grad=True)
        if fused:
            with pytest.raises(SpreadError, match=r"a tensor outside both .* detach"):
                decoder.model(encoder.model(mine) + prompt, target=target)
            of_two = Pair(nn.Bilinear(6, 6, CLASSES), loss=nn.CrossEntropyLoss()).model
            hidden = encoder.model(mine)
            for inputs in ((hidden + prompt, hidden), (hidden, hidden + prompt)):
                with pytest.raises(SpreadError, match=r"a tensor outside both .* detach"):
                    of_two(*inputs, target=target)


def mean_over_the_ranks(seen, bucket):  # DDP rejects annotations that are texts
    """A communication hook that does what DDP does without one."""
    seen.append(len(bucket.gradients()))
    total = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(total, async_op=True).get_future().then(lambda work: work.value()[0])


def case_a_communication_hook_gives_the_numbers_of_one_device() -> None:
    for fused in (False, True):
        criterion = nn.CrossEntropyLoss()
        pair = Pair(
            perceptron(),
            loss=criterion if fused else None,
            plan=Replicas(ddp={"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True}),
        )
        seen: list[int] = []
        pair.model.register_comm_hook(seen, mean_over_the_ranks)
        for step in STEPS.values():
            pair.model.zero_grad()
            pair.one.zero_grad()
            for rows in (micro_batches := step(pair.ranks)):
                x = torch.randn(sum(rows), WIDTH, device=pair.device)
                y = torch.randint(CLASSES, (sum(rows),), device=pair.device)
                criterion(pair.one(x), y).backward()
                mine, target = pair.mine(rows, x, y)
                with nullcontext() if rows is micro_batches[-1] else pair.model.no_sync():
                    outputs = pair.model(mine, target=target) if fused else pair.model(mine)
                    (outputs if fused else criterion(outputs, target)).backward()
            pair.assert_same("gradients")
        assert all(p.grad._is_view() for p in pair.model.parameters())
        # Once DDP has rebuilt its buckets, they are as small as requested, and have all gradients.
        parameters = len(list(pair.one.parameters()))
        assert sum(seen) == parameters * len(STEPS)
        assert len(seen) > len(STEPS)
        with pytest.raises(RuntimeError, match="only be called once"):
            pair.model.register_comm_hook(seen, mean_over_the_ranks)


def case_gradients_are_compressed_by_pytorchs_hooks() -> None:
    pair = Pair(perceptron())
    pair.model.register_comm_hook(None, fp16_compress_hook)
    rows = [1 + 3 * rank for rank in range(pair.ranks)]
    x = torch.randn(sum(rows), WIDTH, device=pair.device)
    pair.one(x).square().mean().backward()
    pair.model(*pair.mine(rows, x)).square().mean().backward()
    for mine, whole in zip(pair.model.parameters(), pair.one.parameters(), strict=True):
        assert not torch.equal(mine.grad, whole.grad)
        torch.testing.assert_close(mine.grad, whole.grad, rtol=2e-3, atol=2e-4)
