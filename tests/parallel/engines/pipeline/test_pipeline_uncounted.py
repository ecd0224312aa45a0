"""Batches in which nothing counts, methods of all spread models, and micro-batches of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from beside_one_device import TOLERANCE, Beside, batch, perceptron, rig_of
from models_of_libraries import CODE, D, Net, T
from torch import Tensor, nn

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.schedules.named import SCHEDULE_NAMES

pytestmark = pytest.mark.gpus(3)

SCHEDULES = [name for name in SCHEDULE_NAMES if name != "forward"]


def assert_same_gradients(pair: Beside, x: Tensor, y: Tensor) -> None:
    one = pair.loss(pair.one(x.to("cuda:0")), y.to("cuda:0"))
    several = pair.model(x, target=y)
    assert one.isnan()
    assert several.isnan()
    one.backward()
    several.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in pair.one.parameters())
    assert pair.compare_gradients() < TOLERANCE


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("weighs", [False, True])
def test_targets_that_are_all_ignored_have_zero_gradients(schedule: str, weighs: bool) -> None:
    weight = torch.arange(1.0, 6.0, dtype=torch.float64, device="cuda:0") if weighs else None
    loss = nn.CrossEntropyLoss(weight, ignore_index=2)
    pair = Beside(perceptron(), 3, loss, schedule=schedule, micro_batches=3)
    x, y = batch(8)
    assert_same_gradients(pair, x, torch.full_like(y, 2))
    half = y.clone()
    half[:4] = 2  # the first micro-batches have nothing that counts
    assert pair.step(x, half) < TOLERANCE


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MSELoss(), nn.L1Loss()], ids=str)
def test_a_batch_without_samples(schedule: str, loss: nn.Module) -> None:
    pair = Beside(perceptron(), 3, loss, schedule=schedule, micro_batches=3)
    x, y = batch(4)
    target = y if isinstance(loss, nn.CrossEntropyLoss) else torch.randn(4, 5, dtype=x.dtype)
    assert_same_gradients(pair, x[:0], target[:0])
    assert pair.step(x, target) < TOLERANCE


@pytest.mark.parametrize("options", [{}, {"schedule": "gpipe"}, {"micro_batches": 1}], ids=str)
def test_methods_of_other_spread_models(options: dict[str, Any]) -> None:
    loss = nn.CrossEntropyLoss()
    pair = Beside(perceptron(), 3, loss, **options)
    x, y = batch(9)
    with pair.model.no_sync():
        assert pair.step(x, y) < TOLERANCE
    with pair.model.join():
        assert pair.step(x[:5], y[:5]) < TOLERANCE
    pair.model.refresh()
    clipped = pair.model.clip_grad_norm_(0.1)
    torch.testing.assert_close(
        clipped.cpu(), nn.utils.clip_grad_norm_(pair.one.parameters(), 0.1).cpu()
    )
    assert pair.compare_gradients() < TOLERANCE


def test_methods_that_accumulation_refuses() -> None:
    model: Any = anyrig.spread(perceptron(), rig_of(2), plan=anyrig.Pipeline(), accumulate=True)
    for name in ("no_sync", "join"):
        with pytest.raises(SpreadError, match="accumulate"), getattr(model, name)():
            pass


@pytest.mark.parametrize("name", ["expands_positions", "the_type_of_a_device", "drops_paths"])
def test_code_of_public_models_with_micro_batches_of_one(name: str) -> None:
    assert name in CODE
    x = torch.randn(5, T, D, dtype=torch.float64)
    loss = nn.MSELoss()
    pair = Beside(Net(name), 2, loss, micro_batches=3, example=((x,), {}))
    for samples in (5, 4, 2, 1):  # micro-batches of two samples and of one
        assert pair.step(x[:samples], torch.randn_like(x[:samples])) < TOLERANCE
