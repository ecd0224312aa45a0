"""What ranks do in `test_distributed.py`: several kinds of models learn like one device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from pair_of_models import Pair
from torch import nn
from trained_models import CLASSES, EXAMPLES, OPTIMIZERS

from anyrig.parallel.plans import Plan, Replicas, Shards

KINDS = ("perceptron", "convolutional", "transformer")

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
    *(f"learning_cases.{name}" for name in LEARNING if "_replicate_" in name),
    "learning_cases.case_perceptron_shard_loss_outside",
    "learning_cases.case_transformer_shard_loss_inside",
]
FOUR_ON_GPUS = [
    "learning_cases.case_transformer_replicate_loss_inside",
    "learning_cases.case_convolutional_replicate_loss_outside",
    "learning_cases.case_perceptron_shard_loss_inside",
]
