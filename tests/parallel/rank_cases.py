"""What every rank does in the tests of `test_distributed.py`."""

from __future__ import annotations

import copy
import io
import itertools
import os
import re
import shutil
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from batch_statistics_cases import (  # noqa: F401 - cases of DISTRIBUTED, too
    case_a_buffer_that_ranks_write_differently_is_named,
    case_statistics_of_a_rank_are_named,
)
from counted_target_cases import (  # noqa: F401 - cases of DISTRIBUTED, too
    case_a_contrast_between_the_samples_of_one_rank_is_refused,
    case_a_loss_of_ones_own_takes_means_over_the_targets_of_all_ranks,
    case_a_mean_by_an_imported_name_is_refused,
    case_a_mean_over_targets_on_one_rank_alone_is_refused,
    case_accumulated_means_over_targets_are_even_or_refused,
    case_replicas_take_means_over_the_targets_of_all_ranks,
    case_sharded_modules_take_means_over_the_targets_of_all_ranks,
)
from exact_cases import (  # noqa: F401 - cases of DISTRIBUTED, too
    case_logical_shards_give_the_numbers_of_one_device,
    case_sums_over_logical_shards_have_one_order,
)
from own_loss_cases import (  # noqa: F401 - cases of DISTRIBUTED, too
    case_a_loss_that_does_not_follow_from_its_parts_is_refused,
    case_a_loss_that_reads_the_module_or_communicates_is_that_of_one_device,
    case_a_mean_of_the_module_is_computed_again_without_a_trace,
    case_a_method_that_returns_no_mean_over_samples_is_refused,
    case_a_number_of_the_module_that_is_no_mean_over_samples_is_refused,
    case_samples_that_a_module_relates_are_refused,
)
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn import functional
from trained_models import CLASSES, EXAMPLES, OPTIMIZERS, WIDTH, perceptron

import anyrig
from anyrig.errors import BatchError, RankMismatchError, ShardSaveError, SpreadError
from anyrig.parallel.plans import Pipeline, Plan, Replicas, Shards
from anyrig.parallel.ranks.balance import Balance
from anyrig.parallel.ranks.exchange import Exchange, Phase
from anyrig.parallel.shares.shares import Shares
from anyrig.processes.group.membership import current_context
from anyrig.processes.nccl_class import SECOND, class_of_nccl

# The limit of every wait in these groups.
TIME_LIMIT_SECONDS = 30.0

KINDS = ("perceptron", "convolutional", "transformer")

UNUSED: dict[str, Any] = {"plan": Replicas(ddp={"find_unused_parameters": True})}

# For each step, the number of samples of each rank in each micro-batch.
STEPS: dict[str, Callable[[int], list[list[int]]]] = {
    "even": lambda ranks: [[4] * ranks],
    "uneven": lambda ranks: [[3 + 2 * rank for rank in range(ranks)]],
    "smaller last": lambda ranks: [[3] * (ranks - 1) + [1]],
    "empty last": lambda ranks: [[3] * (ranks - 1) + [0]],
    "empty lead": lambda ranks: [[0] + [2] * (ranks - 1)],
    "accumulated": lambda ranks: [
        [1 + rank for rank in range(ranks)],
        [3] * ranks,
        [2 * ranks - rank for rank in range(ranks)],
    ],
}


class Pair:
    """A module spread over the group, and a copy on one device; both get global batches."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = anyrig.Rig.detect().lead.torch_device
        self.module = module.double().to(self.device)
        self.one = copy.deepcopy(self.module)
        if self.rank:  # only rank 0's parameters count
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.zero_()
        self.model = anyrig.spread(self.module, **options)

    def mine(self, rows: list[int], *batch: Tensor) -> tuple[Tensor, ...]:
        """Return this rank's samples of tensors that have the samples of all ranks."""
        start = sum(rows[: self.rank])
        return tuple(tensor[start : start + rows[self.rank]] for tensor in batch)

    def assert_same(self, what: str = "state") -> None:
        """Require that parameters and buffers, or gradients, agree to 1e-9."""
        here, there = self.model.state_dict(), self.one.state_dict()
        if what == "gradients":
            here = {name: p.grad for name, p in self.model.named_parameters()}
            there = {name: p.grad for name, p in self.one.named_parameters()}
        assert list(here) == list(there)
        for name, value in there.items():
            error = (full(here[name]) - value).abs().max()
            assert error <= 1e-9 * value.abs().max(), f"{name} is off by {float(error):.2e}"


def full(tensor: Tensor) -> Tensor:
    """Return the whole tensor, from all its shards."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach()


def learn_like_one(kind: str, plan: Plan, fused: bool, optimizer: str, **options: Any) -> None:
    example, criterion = EXAMPLES[kind], nn.CrossEntropyLoss()
    pair = Pair(example.build(), plan=plan, loss=criterion if fused else None, **options)
    ours = OPTIMIZERS[optimizer](pair.model.parameters())
    its = OPTIMIZERS[optimizer](pair.one.parameters())
    for step in STEPS.values():
        ours.zero_grad()
        its.zero_grad()
        micro_batches = step(pair.ranks)
        for rows in micro_batches:
            inputs = tuple(tensor.to(pair.device) for tensor in example.inputs(sum(rows)))
            target = torch.randint(CLASSES, (sum(rows),), device=pair.device)
            expected = criterion(pair.one(*inputs), target)
            expected.backward()
            *x, y = pair.mine(rows, *inputs, target)
            with nullcontext() if rows is micro_batches[-1] else pair.model.no_sync():
                loss = pair.model(*x, target=y) if fused else criterion(pair.model(*x), y)
                loss.backward()
            if fused:
                torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)
        ours.step()
        its.step()
        pair.assert_same()


_PLANS: dict[str, Plan] = {"replicate": Replicas(), "shard": Shards()}
LEARNING = [
    f"case_{kind}_{how}_{way}"
    for kind in KINDS
    for how in ("replicate", "shard")
    for way in ("loss_outside", "loss_inside")
]
for _name in LEARNING:
    _, _kind, _how, _, _way = _name.split("_")
    globals()[_name] = partial(
        learn_like_one, _kind, _PLANS[_how], _way == "inside", "adam" if _way == "inside" else "sgd"
    )
# Two ranks learn with every kind of model. For four, one optimizer and one way each are enough.
FOUR_ON_THE_CPU = [
    *(name for name in LEARNING if "_replicate_" in name),
    "case_perceptron_shard_loss_outside",
    "case_transformer_shard_loss_inside",
]
FOUR_ON_GPUS = [
    "case_transformer_replicate_loss_inside",
    "case_convolutional_replicate_loss_outside",
    "case_perceptron_shard_loss_inside",
]


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


class _Rooted(nn.Module):
    """Has a parameter of its own, which FSDP2 keeps gathered after a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = perceptron()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * self.scale.repeat(WIDTH)[:WIDTH])


def case_shards_are_gathered_anew_after_a_step() -> None:
    """A forward without a backward pass comes between the backward pass and the step."""
    for always in (None, False):
        pair = Pair(_Rooted(), plan=Shards(reshard_after_forward=always))
        optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (pair.model, pair.one)]
        rows = [1 + rank for rank in range(pair.ranks)]
        x = torch.randn(sum(rows), WIDTH, device=pair.device)
        for grad_mode in (torch.no_grad, torch.enable_grad):
            pair.one(x).square().mean().backward()
            (mine,) = pair.mine(rows, x)
            pair.model(mine).square().mean().backward()
            with grad_mode():
                pair.model(mine)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                (expected,) = pair.mine(rows, pair.one(x))
                torch.testing.assert_close(pair.model(mine), expected, rtol=1e-9, atol=1e-12)


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


def case_gradients_of_inputs_are_those_of_what_is_returned() -> None:
    """They are those of the global loss with `loss=`, and of the rank's own loss without."""
    criterion = nn.CrossEntropyLoss()
    for plan in (Replicas(), Shards()):
        for fused in (False, True):
            options = {"plan": plan, "loss": criterion if fused else None}
            pair = Pair(
                nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES)), **options
            )
            for rows in ([4] * pair.ranks, [1 + 2 * rank for rank in range(pair.ranks)]):
                input_gradients_agree(pair, rows, fused)


def input_gradients_agree(pair: Pair, rows: list[int], fused: bool) -> None:
    torch.manual_seed(3)  # the tables of all ranks are the same
    tables = [nn.Embedding(5, WIDTH, device=pair.device) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    criterion = nn.CrossEntropyLoss()
    added = torch.randn(sum(rows), WIDTH, device=pair.device)
    words = torch.randint(5, (sum(rows),), device=pair.device)
    y = torch.randint(CLASSES, (sum(rows),), device=pair.device)
    whole = added.clone().requires_grad_()
    criterion(pair.one(tables[0](words) + whole), y).backward()
    mine, own_words, target = pair.mine(rows, added, words, y)
    mine = mine.clone().requires_grad_()
    given = tables[1](own_words) + mine  # an embedding that is not spread
    if fused:
        pair.model(given, target=target).backward()
    else:
        criterion(pair.model(given), target).backward()
    # The rank's own loss is the mean over its samples; the global loss contains a part of it.
    scale = 1.0 if fused else sum(rows) / max(rows[pair.rank], 1)
    (expected,) = pair.mine(rows, whole.grad)
    torch.testing.assert_close(mine.grad, scale * expected, rtol=1e-9, atol=1e-15)
    table = tables[1].weight.grad / scale
    dist.all_reduce(table)
    torch.testing.assert_close(table, tables[0].weight.grad, rtol=1e-9, atol=1e-15)
    pair.assert_same("gradients")
    for each in (pair.model, pair.one):
        each.zero_grad()


def case_outputs_of_any_form() -> None:
    """One output is computed from another, one is returned twice, one is changed in place."""

    class Forms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, 6), nn.Linear(6, 6)

        def forward(self, *, x: Tensor, name: str) -> dict[str, Any]:
            hidden = self.first(x)
            last = self.second(hidden)
            return {"hidden": (hidden, last), "again": [last], "bias": self.first.bias, name: 1}

    def loss(outputs: dict[str, Any]) -> Tensor:
        hidden, last = outputs["hidden"]
        last.mul_(3)
        again = outputs["again"][0].square()
        return (hidden.square().sum(1) + again.sum(1)).mean() + outputs["bias"].sum()

    pair = Pair(Forms())
    rows = [4 - 3 * (rank % 2) for rank in range(pair.ranks)]
    x = torch.randn(sum(rows), WIDTH, device=pair.device)
    loss(pair.one(x=x, name="one")).backward()
    outputs = pair.model(x=pair.mine(rows, x)[0], name="one")
    assert outputs["again"][0] is outputs["hidden"][1]
    loss(outputs).backward()
    # A parameter that is returned is weighted like an output: the mean of the weights is 1.
    pair.assert_same("gradients")


def case_every_kind_of_loss() -> None:
    weight = torch.rand(CLASSES, dtype=torch.float64)

    def mean_of_rows(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, reduction="none").mean()

    def sum_and_count(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        losses = functional.cross_entropy(output, target, reduction="none")
        return (losses * (target != 0)).sum(), (target != 0).sum()

    criterions = [
        nn.CrossEntropyLoss(weight, ignore_index=1, label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(reduction="none"),
        mean_of_rows,
        sum_and_count,
    ]
    for criterion in criterions:
        if isinstance(criterion, nn.Module):
            criterion.to(anyrig.Rig.detect().lead.torch_device)
        for last in (5, 0):
            pair = Pair(nn.Linear(4, CLASSES), loss=criterion)
            rows = [2] * (pair.ranks - 1) + [last]
            x = torch.randn(sum(rows), 4, device=pair.device)
            y = torch.randint(CLASSES, (sum(rows),), device=pair.device)
            whole = criterion(pair.one(x), y)
            whole = whole[0] / whole[1] if isinstance(whole, tuple) else whole
            whole.mean().backward()
            mine, target = pair.mine(rows, x, y)
            with torch.no_grad():
                untold = pair.model(mine, target=target)
            found = pair.model(mine, target=target)
            found.mean().backward()
            expected = pair.mine(rows, whole)[0] if whole.dim() else whole
            for value in (found, untold):
                torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
            pair.assert_same("gradients")


class OwnLoss(nn.Linear):
    """Computes the loss in its forward, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__(4, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = super().forward(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def case_a_model_that_computes_its_own_loss() -> None:
    """Each rank gets the loss of its own samples, and the gradients of all ranks' samples."""
    for fused in (False, True):
        for last in (5, 0):
            pair = Pair(OwnLoss(), loss=(lambda output, target: output["loss"]) if fused else None)
            rows = [2 + rank for rank in range(pair.ranks - 1)] + [last]
            x = torch.randn(sum(rows), 4, device=pair.device)
            y = torch.randint(CLASSES, (sum(rows),), device=pair.device)
            whole = pair.one(x, y)["loss"]
            whole.backward()
            mine, labels = pair.mine(rows, x, y)
            if fused:
                loss = pair.model(mine, labels=labels, target=labels)
                again = pair.model(mine, labels=labels, target=None)
                torch.testing.assert_close(again, whole, rtol=1e-9, atol=0)
            else:
                loss = pair.model(mine, labels=labels)["loss"]
                if labels.numel():
                    own = pair.one(mine, labels)["loss"]
                    torch.testing.assert_close(loss, own, rtol=1e-9, atol=0)
            loss.backward()
            pair.assert_same("gradients")
            reported = anyrig.mean_over_ranks(loss, weight=rows[pair.rank])
            torch.testing.assert_close(reported, whole.detach(), rtol=1e-9, atol=0)


def case_outputs_and_targets_of_different_lengths() -> None:
    """Outputs are padded to the longest sequence of each rank, and are not broadcast."""
    device = anyrig.Rig.detect().lead.torch_device
    model = anyrig.spread(nn.Linear(2, 1).to(device), loss=nn.MSELoss())
    with pytest.raises(BatchError, match=r"\(3, 1\) and \(3, 9\).*total_length="):
        model(torch.ones(3, 2), target=torch.ones(3, 9, device=device))


def case_no_rows_leave_statistics_alone() -> None:
    """All ranks get the running statistics of the first rank with samples; none becomes NaN."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    net.register_buffer("marks", torch.tensor([True, False, True]))  # 3 bytes, not 8
    pair = Pair(net)
    for rows in ([0] + [3] * (pair.ranks - 1), [3] * (pair.ranks - 1) + [0], [0] * pair.ranks):
        x = torch.randn(sum(rows), 3, 4, 4, device=pair.device)
        first = next((rank for rank, count in enumerate(rows) if count), None)
        if first is not None:
            start = sum(rows[:first])
            pair.one(x[start : start + rows[first]])
        pair.model(*pair.mine(rows, x)).sum().backward()
        found = dict(pair.module.named_buffers())
        for name, expected in pair.one.named_buffers():
            torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=0)
        for parameter in pair.model.parameters():
            assert parameter.grad.isfinite().all()
            parameter.grad = None


class ScaledByData(nn.Module):
    """Multiplies by a buffer that its first call sets, as some normalizations do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("scale", torch.zeros(()))
        self.is_set = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_set:
            self.is_set = True
            with torch.no_grad():
                self.scale.copy_(x.abs().max())
        return self.linear(x) * self.scale


def case_buffers_that_a_graph_has_saved() -> None:
    """Rank 0's buffers arrive as by an in-place write, which the graph of another rank reports."""
    pair = Pair(ScaledByData())
    x = torch.full((2, 4), 1.0 + pair.rank, device=pair.device, requires_grad=True)
    first, *outputs = [pair.model(x) for _ in range(4)]
    first.sum().backward()
    told = []
    for output in outputs:
        try:
            torch.autograd.grad(output.sum(), x)
            told.append("")
        except RuntimeError as error:
            told.append(str(error))
    # Rank 0's buffers arrive at the end of the first backward pass.
    assert ["modified by an inplace operation" in text for text in told] == [pair.rank > 0] * 3
    assert pair.module.scale == 1


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


def case_scattered_returns_a_list_of_this_ranks_output() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    x, y = torch.ones(3, WIDTH, device=device), torch.ones(3, CLASSES, device=device)
    for plan in (Replicas(), Shards()):
        model = anyrig.spread(perceptron().to(device), plan=plan, loss=nn.MSELoss())
        (output,) = model.scattered(x)
        assert torch.equal(output, model(x))
        with pytest.raises(TypeError, match=r"scattered\(\) returns outputs"):
            model.scattered(x, target=y)


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
            assert re.search(rf"rank {rank} is at rank_cases\.py:\d+ in case", str(error.value))
    assert time.monotonic() - started < TIME_LIMIT_SECONDS


def case_a_barrier_while_another_rank_is_in_a_backward_pass() -> None:
    """Both raise at once, also on GPUs, whose backward passes have threads of their own."""
    model = anyrig.spread(perceptron().to(anyrig.Rig.detect().lead.torch_device))
    started = time.monotonic()
    place = r"\(rank_cases\.py:\d+ in case_a_barrier_while_another"
    if dist.get_rank() == 0:
        backward = f"rank 0 waits at the backward pass of a forward of spread model .* {place}"
        loss = model(torch.ones(2, WIDTH)).sum()
        with pytest.raises(RankMismatchError, match=f"{backward}.*last reached a barrier"):
            loss.backward()
        dist.barrier()
        anyrig.barrier()  # which the other ranks have reached already
    else:
        came = "last reached the backward pass of .* at rank_cases"
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


def case_the_module_shows_through() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    assert anyrig.current_device() == device
    net = perceptron().to(device)
    net.colour = "red"
    model = anyrig.spread(net, loss=nn.CrossEntropyLoss())
    assert (
        [*model.state_dict()] == [*net.state_dict()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    )
    assert model.colour == "red"
    model.eval()
    assert not net.training
    seen = []
    net[0].register_forward_hook(lambda *_: seen.append("inner"))
    model.register_forward_hook(lambda *_: seen.append("outer"))
    model(torch.ones(1, WIDTH))
    assert seen == ["inner", "outer"]
    text = str(anyrig.explain(model))
    backend = "nccl" if anyrig.Rig.detect().kind == "cuda" else "gloo"
    assert f"replicas over {dist.get_world_size()} ranks" in text
    assert f"collectives by {backend}: " in text
    assert "CrossEntropyLoss: summed over all parts" in text


def case_a_module_on_another_gpu_stays_there() -> None:
    own = anyrig.Rig.detect().lead.torch_device
    if own.type == "cpu":
        return
    other = torch.device("cuda", (own.index + 1) % torch.cuda.device_count())
    if class_of_nccl(torch.__version__, os.environ) == SECOND:
        with pytest.raises(SpreadError, match=f"on {other}, but .* takes tensors on {own} only"):
            anyrig.spread(nn.Linear(2, 2).to(other))
    else:
        model = anyrig.spread(nn.Linear(2, 2).to(other))
        assert {parameter.device for parameter in model.parameters()} == {other}
    with pytest.raises(SpreadError, match=f"parameter weight is on {other}"):
        anyrig.spread(nn.Linear(2, 2).to(other), own)


def case_a_copy_is_a_model_of_its_own() -> None:
    pair = Pair(perceptron())
    rows = [1 + rank for rank in range(pair.ranks)]
    x = torch.randn(sum(rows), WIDTH, device=pair.device)
    pair.model(*pair.mine(rows, x)).sum().backward()
    pair.model.zero_grad()
    original, pair.model = pair.model, copy.deepcopy(pair.model)
    pair.one(x).mean().backward()
    pair.model(*pair.mine(rows, x)).mean().backward()
    pair.assert_same("gradients")
    assert all(parameter.grad is None for parameter in original.parameters())


def case_what_cannot_be_is_refused() -> None:
    lead = anyrig.Rig.detect().lead.torch_device
    net = nn.Linear(2, 2).to(lead)
    model = anyrig.spread(net)
    refused: list[tuple[str, dict[str, Any], nn.Module]] = [
        ("is spread already", {}, model),
        ("only the module's are averaged", {"loss": Learned()}, net),
        ("output_device= is for one process", {"output_device": lead}, net),
        ("1 block that can be on different ranks", {"plan": Pipeline()}, net),
    ]
    if lead.type == "cpu":
        plan = Replicas(sync_batch_norm=True)
        refused.append(("SyncBatchNorm, which computes on GPUs", {"plan": plan}, net))
    else:
        refused.append(("uses one device", {"rig": anyrig.Rig.parse("cuda:0,1")}, net))
    for message, options, module in refused:
        with pytest.raises(SpreadError, match=message):
            anyrig.spread(module, **options)
    assert anyrig.current_device() == lead
    assert anyrig.explain(anyrig.spread(nn.Linear(2, 2).to(lead))).lead == lead
    with pytest.raises(TypeError, match="takes no argument 'target'"):
        model(torch.ones(1, 2), target=1)


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def case_a_target_that_is_not_given_as_target_is_explained() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    x = torch.ones(2, WIDTH, device=device)
    y = torch.zeros(2, dtype=torch.long, device=device)
    for plan in (Replicas(), Shards()):
        model = anyrig.spread(perceptron().to(device), plan=plan, loss=nn.CrossEntropyLoss())
        for learns in (True, False):
            with torch.set_grad_enabled(learns), pytest.raises(TypeError) as error:
                model(x, y)
            told = "".join(traceback.format_exception_only(error.value))
            assert "write model(x, target=y) instead of model(x, y)" in told
        model(x, target=y).backward()
    with pytest.raises(SpreadError, match=r"MSELoss is a class.* nn\.MSELoss\(\)"):
        anyrig.spread(perceptron(), loss=nn.MSELoss)


def case_a_frozen_module_is_only_called() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    net = nn.Linear(2, 2).to(device).requires_grad_(False)
    net.weight.fill_(float(dist.get_rank()))
    model = anyrig.spread(net)
    assert model(torch.ones(1, 2)).sum() == 2 * float(net.bias.sum()) / 2
    assert (net.weight == 0).all()


def case_changes_after_spread_are_refused() -> None:
    """Otherwise each rank would silently keep its own gradients."""
    device = anyrig.Rig.detect().lead.torch_device
    x = torch.ones(2, 2, device=device)

    def net() -> nn.Module:
        layers = [nn.Linear(2, 2), nn.Tanh(), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2)]
        return nn.Sequential(*layers).requires_grad_(True).to(device)

    def change(of: nn.Module, name: str, value: Any) -> Callable[[], None]:
        return lambda: setattr(of, name, value)

    for options, refused in (
        ({}, (True,)),  # only unfreezing is refused
        (UNUSED, (True,)),
        ({"plan": Shards()}, ()),
    ):
        module = net()
        module[3].bias.requires_grad_(False)
        model = anyrig.spread(module, **options)
        changes: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = []
        first, last = module[0], module[3]
        for parameter, named, before in (
            (first.weight, "0.weight", True),
            (last.bias, "3.bias", False),
        ):
            if (not before) not in refused:
                continue
            changes.append(
                (
                    rf"{re.escape(named)}\.requires_grad became {not before}\.",
                    partial(parameter.requires_grad_, not before),
                    partial(parameter.requires_grad_, before),
                )
            )
        new = nn.Parameter(torch.ones_like(full(first.weight)))
        changes += [
            (
                "0.weight was replaced",
                change(first, "weight", new),
                change(first, "weight", first.weight),
            ),
            (
                "3.weight was replaced",
                partial(module.__setitem__, 3, nn.Linear(2, 2, device=device)),
                partial(module.__setitem__, 3, last),
            ),
            (
                "head.weight was added, head.bias was added",
                change(module, "head", nn.Linear(2, 2, device=device)),
                partial(delattr, module, "head"),
            ),
            (
                "scale was added",
                change(module, "scale", nn.Parameter(x.clone())),
                partial(delattr, module, "scale"),
            ),
            ("3.bias was removed", change(last, "bias", None), change(last, "bias", last.bias)),
            (
                "layer 2 was replaced, which has buffers",
                partial(module.__setitem__, 2, nn.BatchNorm1d(2, affine=False).to(device)),
                partial(module.__setitem__, 2, module[2]),
            ),
        ]
        with torch.no_grad():
            model.eval()(x)
        model.train()
        for _ in range(2):  # before the first step, and after it
            for words, make, undo in changes:
                make()
                with pytest.raises(
                    SpreadError, match=f"(?s)has changed since .*{words}.*after changing it"
                ):
                    model(x)
                with torch.no_grad():
                    model.eval()(x)  # averages nothing
                undo()
            module.train()[1] = nn.ReLU()  # has nothing to average
            model(x)
            model(x).sum().backward()  # FSDP2 has already gathered the parameters
            model.zero_grad()
    model = anyrig.spread(net())
    model.load_state_dict(net().state_dict(), assign=True)
    with pytest.raises(
        SpreadError, match=r"0.weight was replaced, 0.bias was replaced, 3.*replaced"
    ):
        model(x)


def case_parameters_that_lost_the_hooks_of_the_gradients_are_refused() -> None:
    """`Tensor.set_`, or another dtype for a while, removes DDP's hooks from parameters."""

    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    def net() -> nn.Module:
        return perceptron().to(anyrig.Rig.detect().lead.torch_device)

    x = torch.ones(2, WIDTH)
    for options in ({}, UNUSED):
        model = anyrig.spread(net(), **options)
        model.module.float().double()
        with pytest.raises(SpreadError, match=r"0\.weight was replaced, 0\.bias was replaced"):
            model(x)
        model = anyrig.spread(net(), **options)
        nn.utils.parametrize.register_parametrization(model.module[0], "weight", Twice())
        with pytest.raises(SpreadError, match=r"0\.parametrizations\.weight\.original was added"):
            model(x)
    model = anyrig.spread(net(), **UNUSED)
    model.module[0].float().double()
    model.module[-1].float().double()
    with pytest.raises(SpreadError, match=r"0\.weight was replaced.* 2\.bias was replaced\. The"):
        model(x)


def steps_of(model: nn.Module, layers: nn.Module, change: str, rows: Any) -> None:
    """Train a model that changes on the way."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = torch.Generator().manual_seed(2)
    for step in range(6):
        x = torch.randn(7, WIDTH, generator=given)[rows].to(next(layers.parameters()).device)
        if change == "froze all" and step in (0, 3):
            layers.requires_grad_(False)
            model(x.requires_grad_()).square().mean().backward()
            layers.requires_grad_(True)
        elif change == "froze some" and step in (2, 4):
            model(x)  # so that FSDP2 has gathered the parameters
            layers[0].requires_grad_(step == 4)
        elif change == "unfroze" and step in (1, 3):
            layers[0].weight.requires_grad_(step == 3)
        elif change == "moved" and step == 2:
            layers[0] = nn.Sequential(layers[0], nn.Identity())
        elif change == "wrote" and step == 2:
            for parameter in layers.parameters():
                parameter.data = parameter.data.clone() * 0.5
        optimizer.zero_grad()
        for _ in range(2):
            model(x).square().mean().backward()
        optimizer.step()


def case_changes_that_leave_the_numbers_right_are_allowed() -> None:
    for change, every in {
        "froze all": [{}, UNUSED, {"plan": Shards()}],
        "froze some": [UNUSED, {"plan": Shards()}],
        "unfroze": [{"plan": Shards()}],
        "moved": [{}, UNUSED, {"plan": Shards()}],
        "wrote": [{}, UNUSED],
    }.items():
        for options in every:
            module = perceptron()
            module[0].weight.requires_grad_(change != "unfroze")
            pair = Pair(module, **options)
            split = 2 * (pair.rank + 1) if pair.rank < pair.ranks - 1 else 7
            own = slice(2 * pair.rank, split)
            steps_of(pair.one, pair.one, change, slice(None))
            steps_of(pair.model, pair.module, change, own)
            pair.assert_same()


def case_a_discriminator_that_is_frozen_while_the_generator_learns() -> None:
    """Freezing it, or calling its `.module`, gives the numbers of one process."""
    for options in ({}, UNUSED, {"plan": Shards()}):
        for way in ("frozen", "module"):
            generator = Pair(perceptron(), **options)
            judge = Pair(
                nn.Sequential(nn.Linear(CLASSES, 5), nn.Tanh(), nn.Linear(5, 1)), **options
            )
            rows = [1 + 2 * rank for rank in range(judge.ranks)]
            batches = [torch.randn(sum(rows), WIDTH, device=judge.device) for _ in range(3)]
            true = torch.randn(sum(rows), CLASSES, device=judge.device)
            for makes, judges, plain, parts in (
                (generator.one, judge.one, judge.one, lambda each: each),
                (
                    generator.model,
                    judge.model,
                    judge.module,
                    lambda each, judge=judge, rows=rows: judge.mine(rows, each)[0],
                ),
            ):
                optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (makes, judges)]
                for x in batches:
                    if way == "frozen":
                        judges.requires_grad_(False)
                    judging = judges if way == "frozen" else plain
                    optimizers[0].zero_grad()
                    judging(makes(parts(x))).tanh().mean().backward()
                    optimizers[0].step()
                    judges.requires_grad_(True)
                    optimizers[1].zero_grad()
                    false = judges(makes(parts(x)).detach())
                    (judges(parts(true)).square().mean() - false.tanh().mean()).backward()
                    optimizers[1].step()
            generator.assert_same()
            judge.assert_same()


def case_shards_that_are_loaded_anew_still_learn() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    model = anyrig.spread(perceptron().to(device), plan=Shards())
    for _ in range(2):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        model.to(torch.float64)
        x = torch.full((1, WIDTH), 1.0 + dist.get_rank(), device=device)
        model(x).square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        model.zero_grad()


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


def case_what_ddp_and_fsdp_do_not_take_is_refused() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    for name, why in (
        ("device_ids", "spread decides it: the module is on the rank's device"),
        ("process_group", "spread decides it: all ranks"),
        ("mixed_precision", "it is not supported. It takes bucket_cap_mb, find_unused"),
    ):
        with pytest.raises(SpreadError, match=f"ddp= does not take {name!r}: {why}"):
            anyrig.spread(perceptron(), plan=Replicas(ddp={name: None}))
    frozen = anyrig.spread(perceptron().to(device).requires_grad_(False))
    with pytest.raises(SpreadError, match="so a hook has nothing to reduce"):
        frozen.register_comm_hook(None, fp16_compress_hook)
    shards = anyrig.spread(perceptron().to(device), plan=Shards())
    with pytest.raises(SpreadError, match="hooks are for replicas"):
        shards.register_comm_hook(None, fp16_compress_hook)
    for replicas in (0, True, 1.5, dist.get_world_size(), 3 * dist.get_world_size()):
        with pytest.raises(SpreadError, match=rf"Shards\(replicas={replicas}\)"):
            anyrig.spread(perceptron(), plan=Shards(replicas=replicas))


def case_shards_in_two_replicas_learn_like_one() -> None:
    """Two of four ranks share the parameters, and the other two have the same shards."""
    for optimizer, fused in (("sgd", False), ("adam", True)):
        learn_like_one("transformer", Shards(replicas=2), fused, optimizer)
    pair = Pair(perceptron(), plan=Shards(replicas=2))
    explained = str(anyrig.explain(pair.model))
    assert f"; 2 replicas of {pair.ranks // 2} shards each" in explained
    state = get_model_state_dict(pair.model, options=StateDictOptions(full_state_dict=True))
    for name, whole in pair.one.state_dict().items():
        assert torch.equal(state[name], whole)
    for parameter, whole in zip(pair.model.parameters(), pair.one.parameters(), strict=True):
        assert parameter.device_mesh.shape == (2, pair.ranks // 2)
        assert parameter.to_local().shape[0] <= -(-whole.shape[0] // (pair.ranks // 2))
    with pytest.raises(ShardSaveError, match=f"among {pair.ranks // 2} ranks"):
        torch.save(pair.model.state_dict(), io.BytesIO())


class Layers(nn.Module):
    """Has a forward of its own, because PyTorch does not compile its own modules alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def case_a_compiled_model_learns_like_one() -> None:
    """Compile the spread model, or the module before it is spread."""
    criterion = nn.MSELoss()
    graphs: list[int] = []

    def count(graph: Any, inputs: list[Any]) -> Any:
        graphs.append(sum(node.target is functional.linear for node in graph.graph.nodes))
        return graph

    def compiled(module: nn.Module) -> Any:
        return torch.compile(module, backend=count)

    for plan, fused, around in (
        (Replicas(), True, True),
        (Replicas(), False, False),
        (Shards(), False, True),
    ):
        one = Layers()
        net = copy.deepcopy(one)
        spread = partial(anyrig.spread, plan=plan, loss=criterion if fused else None)
        graphs.clear()
        torch.compiler.reset()
        model = compiled(spread(net)) if around else spread(compiled(net))
        ours = torch.optim.SGD(model.parameters(), 0.1)
        its = torch.optim.SGD(one.parameters(), 0.1)
        for rows in ([2, 4], [3, 2], [3, 0]):
            start, end = (0, rows[0]) if dist.get_rank() == 0 else (rows[0], sum(rows))
            x, y = torch.randn(sum(rows), WIDTH), torch.randn(sum(rows), 2)
            mine, target = x[start:end], y[start:end]
            criterion(one(x), y).backward()
            loss = model(mine, target=target) if fused else criterion(model(mine), target)
            loss.backward()
            for optimizer in (ours, its):
                optimizer.step()
                optimizer.zero_grad()
        for found, expected in zip(model.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(full(found), expected, rtol=1e-9, atol=1e-12)
        assert set(graphs) == {2}, graphs  # one graph with the module's two layers


def case_shards_are_explained() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    net = EXAMPLES["transformer"].build().to(device)
    model = anyrig.spread(net, plan=Shards())
    text = str(anyrig.explain(model))
    assert text.startswith(f"shards over {dist.get_world_size()} ranks, this one on {device}")
    assert "blocks: layers.layers.0, layers.layers.1" in text
    net = EXAMPLES["transformer"].build().to(device)
    chosen = anyrig.spread(net, plan=Shards(blocks=[nn.LayerNorm]))
    assert "blocks: layers.layers.0.norm1, " in str(anyrig.explain(chosen))
    assert all(hasattr(value, "full_tensor") for value in model.state_dict().values())
    assert not any(name.startswith("module.") for name in model.state_dict())
    with pytest.raises(SpreadError, match="updates its own shard"):
        model.join()


def case_shards_with_options() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    from torch.distributed.fsdp import MixedPrecisionPolicy

    seen = []
    for plan in (
        Shards(
            blocks=[nn.Linear],
            mixed_precision=MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        ),
        Shards(offload=device.type != "cpu", reshard_after_forward=False),
        # All parameters outside of blocks.
        Shards(blocks=[], mixed_precision=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    ):
        net = perceptron()
        net[0].register_forward_hook(lambda layer, given, output: seen.append(output.dtype))
        model = anyrig.spread(net, plan=plan)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(2 + dist.get_rank(), WIDTH)).sum().backward()
        optimizer.step()
        kept = {full(p).device.type for p in model.parameters()}
        local = {p.to_local().device.type for p in model.parameters()}
        assert local == ({"cpu"} if plan.offload else {device.type}), (local, kept)
    assert seen == [torch.bfloat16, torch.float64, torch.bfloat16]


def case_shards_are_not_saved_as_if_they_were_the_whole() -> None:
    module = perceptron()
    alone = copy.deepcopy(module)
    model = anyrig.spread(module, plan=Shards())
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    state = model.state_dict()
    weight = state["0.weight"]
    for lost in (
        state,
        {"epoch": 3, "model": copy.deepcopy(state)},
        {"weights": [weight.cpu() * 2, weight.grad]},
        optimizer.state_dict(),
        model,
    ):
        with pytest.raises(ShardSaveError, match="lose the others'") as error:
            torch.save(lost, io.BytesIO())
    with pytest.raises(SpreadError, match="cannot be copied"):
        copy.deepcopy(model)
    # The code in the message.
    names = {"model": model, "optimizer": optimizer}
    steps = re.findall(
        r"(from torch.* StateDictOptions|state = .*?\)\))", str(error.value), re.DOTALL
    )
    exec("\n".join(steps), names)
    assert "get_optimizer_state_dict(model, optimizer, options=" in str(error.value)
    options = names["StateDictOptions"](full_state_dict=True, cpu_offload=True)
    whole = names["get_optimizer_state_dict"](model, optimizer, options=options)
    if dist.get_rank() == 0:
        saved = io.BytesIO()
        torch.save({"model": names["state"], "optimizer": whole}, saved)
        saved.seek(0)
        alone.load_state_dict(torch.load(saved)["model"])
    for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
        found = full(mine)
        if dist.get_rank() == 0:
            assert torch.equal(found.cpu(), other)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    own = names["get_model_state_dict"](model)
    expected = full(own["0.weight"]).clone()
    checkpoint.save({"model": own}, checkpoint_id=folder[0])
    with torch.no_grad():
        own["0.weight"].zero_()
    checkpoint.load({"model": own}, checkpoint_id=folder[0])
    assert torch.equal(full(own["0.weight"]), expected)
    dist.barrier()
    shutil.rmtree(folder[0], ignore_errors=True)


SHARDED = [name for name in LEARNING if "_shard_" in name] + [
    "case_shards_are_not_saved_as_if_they_were_the_whole",
    "case_shards_are_explained",
    "case_shards_with_options",
    "case_shards_that_are_loaded_anew_still_learn",
    "case_shards_are_gathered_anew_after_a_step",
]
INPUTS = ["case_gradients_of_inputs_are_those_of_what_is_returned", "case_models_follow_each_other"]
# Cases for four ranks.
IN_REPLICAS = ["case_shards_in_two_replicas_learn_like_one"]
# Cases for the CPU.
COMPILED = ["case_a_compiled_model_learns_like_one"]
DISTRIBUTED = [
    name
    for name in dict(globals())
    if name.startswith("case_") and name not in (*SHARDED, *IN_REPLICAS, *COMPILED)
]
