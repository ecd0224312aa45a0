"""What ranks do in the tests of `test_distributed.py` and `test_sharded.py`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from trained_models import CLASSES, EXAMPLES, OPTIMIZERS

import anyrig

KINDS = ("perceptron", "convolutional", "transformer")

# The rows of each rank, of two and of four; a list of them is a batch in micro-batches.
BATCHES = {
    "even": lambda ranks: [[4] * ranks],
    "uneven": lambda ranks: [[3 + 2 * rank for rank in range(ranks)]],
    "last": lambda ranks: [[1] + [3] * (ranks - 1)],
    "empty": lambda ranks: [[3] * (ranks - 1) + [0]],
    "lead empty": lambda ranks: [[0] + [2] * (ranks - 1)],
    "accumulated": lambda ranks: [
        [1 + rank for rank in range(ranks)],
        [3] * ranks,
        [2 * ranks - rank for rank in range(ranks)],
    ],
}


def device() -> torch.device:
    return anyrig.Rig.detect().lead.torch_device


def full(parameter: Tensor) -> Tensor:
    """Return a parameter with all its shards."""
    whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return whole.detach()


def assert_same_state(found: nn.Module, expected: nn.Module) -> None:
    here, there = found.state_dict(), expected.state_dict()
    assert list(here) == list(there)
    for name, value in there.items():
        error = (full(here[name]).to(value.device) - value).abs().max()
        assert error <= 1e-9 * value.abs().max(), f"{name} is off by {float(error):.2e}"


def part_of(tree: Any, start: int, stop: int) -> Any:
    return tuple(tensor[start:stop] for tensor in tree)


def train_like_one(kind: str, how: str, fused: bool, optimizer: str, **options: Any) -> None:
    """Train a model in the group and one alone on the same global batches; compare them."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    example, criterion = EXAMPLES[kind], nn.CrossEntropyLoss()
    module = example.build().double().to(device())
    one = copy.deepcopy(module)
    if rank:  # whose parameters do not count
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
    model = anyrig.spread(module, how=how, loss=criterion if fused else None, **options)
    mine, its = OPTIMIZERS[optimizer](model.parameters()), OPTIMIZERS[optimizer](one.parameters())
    for rows_of_micro_batches in (make(ranks) for make in BATCHES.values()):
        mine.zero_grad()
        its.zero_grad()
        last = len(rows_of_micro_batches) - 1
        for index, rows in enumerate(rows_of_micro_batches):
            inputs = tuple(tensor.to(device()) for tensor in example.inputs(sum(rows)))
            target = torch.randint(CLASSES, (sum(rows),), device=device())
            expected = criterion(one(*inputs), target)
            expected.backward()
            start = sum(rows[:rank])
            x, y = (
                part_of((*inputs, target), start, start + rows[rank])[:-1],
                target[start : start + rows[rank]],
            )
            with model.no_sync() if index < last else nothing():
                loss = model(*x, target=y) if fused else criterion(model(*x), y)
                loss.backward()
            if fused:
                torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)
        mine.step()
        its.step()
        assert_same_state(model, one)


class nothing:  # noqa: N801
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def _named(function: Callable[..., None], name: str, *arguments: Any) -> None:
    def case() -> None:
        function(*arguments)

    globals()[name] = case


for _kind in KINDS:
    for _how in ("replicate", "shard"):
        for _fused, _optimizer in ((False, "sgd"), (True, "adam")):
            _way = "with_loss" if _fused else "loss_outside"
            _named(train_like_one, f"case_{_kind}_{_how}_{_way}", _kind, _how, _fused, _optimizer)
