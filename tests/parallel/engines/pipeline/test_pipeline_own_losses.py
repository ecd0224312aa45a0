"""A module's own loss in a pipeline is that of the whole batch, whatever targets are ignored."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from beside_one_device import TOLERANCE, difference, planned, rig_of
from models_with_losses import LOSSES, WHOLE, Indexing, Tagger, batch
from torch import Tensor, nn

import anyrig
from anyrig.errors import SpreadError

pytestmark = pytest.mark.gpus(2)


class Beside:
    """A `Tagger` on one device, and its copy in a pipeline."""

    def __init__(self, name: str, **options: Any) -> None:
        torch.manual_seed(0)
        self.one = Tagger(name).double().to("cuda:0")
        self.several = copy.deepcopy(self.one)
        options = {"example": ((), batch(4)), "micro_batches": "auto", **options}
        self.model: Any = anyrig.spread(self.several, rig_of(2), **planned(options))

    def step(self, call: dict[str, Tensor]) -> float:
        """Train both modules on a batch, and return the greatest difference."""
        alone = self.one(**{name: each.to("cuda:0") for name, each in call.items()})["loss"]
        found = self.of_pipeline(call)
        for each in (alone, found):
            each.backward()
        pairs = zip(self.one.parameters(), self.several.parameters(), strict=True)
        gradients = [difference(a.grad, b.grad) for a, b in pairs]
        self.one.zero_grad(), self.several.zero_grad()
        if alone.isnan():
            assert found.isnan()
            return max(gradients)
        return max(difference(alone, found), *gradients)

    def of_pipeline(self, call: dict[str, Tensor]) -> Tensor:
        loss: Tensor = self.model(**call)["loss"]
        return loss


@pytest.mark.parametrize("name", [*LOSSES, *WHOLE])
def test_targets_that_are_ignored(name: str) -> None:
    pair = Beside(name)
    for samples in (4, 5, 2, 1):
        assert pair.step(batch(samples)) < TOLERANCE, samples
    assert pair.step(batch(4, "nowhere")) < TOLERANCE
    assert ("1, as the module computes" in str(anyrig.explain(pair.model))) == (name in WHOLE)


@pytest.mark.parametrize("name", ["a_function", "labels_are_shifted", "a_submodule"])
def test_a_batch_whose_targets_are_all_ignored(name: str) -> None:
    pair = Beside(name)
    assert pair.step(batch(4, "all")) < TOLERANCE
    assert pair.step(batch(4)) < TOLERANCE


class WithLoss(Beside):
    """Takes the module's loss by a criterion, so that a schedule interleaves backward passes."""

    def of_pipeline(self, call: dict[str, Tensor]) -> Tensor:
        loss: Tensor = self.model(**call, target=None)
        return loss


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "gpipe"])
@pytest.mark.parametrize("name", ["labels_are_shifted", "two_losses", "a_submodule"])
def test_schedules(name: str, schedule: str) -> None:
    loss = lambda output, target: output["loss"]  # noqa: E731
    pair = WithLoss(name, loss=loss, schedule=schedule)
    for samples in (8, 5):
        assert pair.step(batch(samples)) < TOLERANCE
    assert pair.step(batch(4, "all")) < TOLERANCE


@pytest.mark.parametrize("name", WHOLE)
def test_several_micro_batches_are_refused_for_a_loss_of_the_whole_batch(name: str) -> None:
    with pytest.raises(SpreadError, match=r"models_with_losses.*cross_entropy.*micro_batches=1"):
        Beside(name, micro_batches=2)
    pair = Beside(name, micro_batches=1)
    assert pair.step(batch(5)) < TOLERANCE


def test_half_precision_does_not_overflow() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.layers(x).half() * 100, y)

    torch.manual_seed(0)
    one = Large().to("cuda:0")
    # The sum of a part of 16 samples does not overflow, and that of all would.
    x, y = 50 * torch.randn(64, 4), torch.randint(4, (64,))
    several = copy.deepcopy(one)
    plan = anyrig.Pipeline(4, example=((x, y), {}))
    model: Any = anyrig.spread(several, rig_of(2), plan=plan)
    found = model(x, y)
    logits = one.layers(x.cuda()).half() * 100
    assert found.dtype == torch.float16
    torch.testing.assert_close(
        found.float().cpu(),
        nn.functional.cross_entropy(logits.float(), y.cuda()).cpu(),
        rtol=1e-3,
        atol=0,
    )


def test_a_device_that_a_later_stage_reads() -> None:
    one = Indexing().double().to("cuda:0")
    x, places = torch.randn(4, 6, dtype=torch.float64), torch.randint(6, (4,))
    several = copy.deepcopy(one)
    model: Any = anyrig.spread(
        several,
        rig_of(2),
        plan=anyrig.Pipeline(example=((x, places), {}), split_points=["second"]),
        loss=nn.L1Loss(),
    )
    assert difference(model(x, places), one(x.cuda(), places.cuda())) < TOLERANCE
    target = torch.zeros(4, dtype=torch.float64)
    loss = model(x, places, target=target)  # by another schedule
    assert difference(loss, one(x.cuda(), places.cuda()).abs().mean()) < TOLERANCE


@pytest.mark.gpus(3)
def test_a_device_that_two_later_stages_read() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            device = h.device
            h = self.b(h.tanh())
            h = self.c(h[torch.arange(h.shape[0], device=device)])
            return h[torch.arange(h.shape[0], device=device)]

    one = Net().double().to("cuda:0")
    x = torch.randn(4, 6, dtype=torch.float64)
    plan = anyrig.Pipeline(example=((x,), {}), split_points=["b", "c"])
    model: Any = anyrig.spread(copy.deepcopy(one), rig_of(3), plan=plan)
    assert difference(model(x), one(x.cuda())) < TOLERANCE
