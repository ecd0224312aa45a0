"""Loss, outputs and gradients of a pipeline are those of one device, to 1e-9 in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from beside_one_device import TOLERANCE, Beside, batch, devices_of, difference, perceptron
from torch import Tensor, nn

import anyrig
from anyrig.parallel.engines.pipeline.schedules.named import SCHEDULE_NAMES
from anyrig.parallel.plans import Replicas

pytestmark = pytest.mark.gpus(4)

SCHEDULES = [name for name in SCHEDULE_NAMES if name != "forward"]


def weighted(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sum, and a count that depends on the targets."""
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    weights = 1.0 + target.double()
    return (losses * weights).sum(), weights.sum()


def mean_of_squares(output: Tensor, target: Tensor) -> Tensor:
    """Return a mean over samples; this criterion is not one of PyTorch's."""
    return ((output - target[:, None]) ** 2).mean()


LOSSES: dict[str, Any] = {
    "mean": nn.CrossEntropyLoss(),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "ignore_index": nn.CrossEntropyLoss(ignore_index=1),
    "class weights": None,
    "sum and count": weighted,
    "unknown mean": mean_of_squares,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_and_micro_batches(schedule: str) -> None:
    for devices in (2, 3, 4):
        many = [(32, 33)] if devices == 4 else []
        for micro_batches, samples in ((1, 5), (2, 5), (3, 8), (4, 4), (8, 9), (8, 3), *many):
            pair = Beside(
                perceptron(),
                devices,
                LOSSES["mean"],
                schedule=schedule,
                micro_batches=micro_batches,
            )
            assert len(devices_of(pair.several)) == devices
            x, y = batch(samples)
            assert pair.step(x, y) < TOLERANCE, (devices, micro_batches, samples)
            assert pair.step(x, y, factor=0.5) < TOLERANCE  # accumulates


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", LOSSES)
def test_losses(schedule: str, name: str) -> None:
    loss = LOSSES[name]
    if loss is None:  # made here, because its tensor needs a GPU
        loss = nn.CrossEntropyLoss(torch.arange(1.0, 6.0, dtype=torch.float64, device="cuda:0"))
    pair = Beside(perceptron(), 3, loss, schedule=schedule, micro_batches=4)
    assert pair.step(*batch(10)) < TOLERANCE


def test_a_loss_that_is_not_reduced() -> None:
    pair = Beside(perceptron(), 3, nn.CrossEntropyLoss(reduction="none"), micro_batches=4)
    assert pair.step(*batch(10)) < TOLERANCE


def test_outputs_and_a_loss_outside() -> None:
    for micro_batches in (1, 3, 4):
        pair = Beside(perceptron(), 4, micro_batches=micro_batches)
        x, y = batch(7)
        outputs = pair.one(x.to("cuda:0")), pair.model(x)
        assert outputs[1].device == torch.device("cuda:3")
        assert difference(*outputs) < TOLERANCE
        for output in outputs:
            nn.functional.cross_entropy(output, y.to(output.device)).backward()
        assert pair.compare_gradients() < TOLERANCE
        with torch.no_grad():
            assert difference(pair.one(x.to("cuda:0")), pair.model(x)) < TOLERANCE
            assert not pair.model(x).requires_grad
        pair.model.eval()
        assert difference(pair.one(x.to("cuda:0")), pair.model(x)) < TOLERANCE


def test_no_grad_with_a_target() -> None:
    pair = Beside(perceptron(), 3, nn.CrossEntropyLoss())
    x, y = batch(7)
    with torch.no_grad():
        loss = pair.model(x, target=y)
        assert difference(loss, pair.loss(pair.one(x.to("cuda:0")), y.to("cuda:0"))) < TOLERANCE
    assert not loss.requires_grad
    assert all(parameter.grad is None for parameter in pair.several.parameters())


@pytest.mark.parametrize("checkpoint", ["except_last", "always"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_checkpointing(schedule: str, checkpoint: str) -> None:
    pair = Beside(
        perceptron(),
        3,
        nn.CrossEntropyLoss(),
        schedule=schedule,
        micro_batches=4,
        checkpoint=checkpoint,
    )
    assert pair.step(*batch(10)) < TOLERANCE


def test_three_steps_of_an_optimizer() -> None:
    pair = Beside(perceptron(), 4, nn.CrossEntropyLoss())
    optimizers = [torch.optim.AdamW(m.parameters(), 0.1) for m in (pair.one, pair.several)]
    for samples in (8, 5, 1):
        assert pair.step(*batch(samples)) < TOLERANCE
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert pair.compare_states() < TOLERANCE


def test_frozen_parameters_and_a_module_without_any_to_learn() -> None:
    pair = Beside(perceptron(), 3, nn.CrossEntropyLoss(), micro_batches=2)
    for module in (pair.one, pair.several):
        for parameter in list(module.parameters())[:6]:
            parameter.requires_grad_(False)
    assert pair.step(*batch(5)) < TOLERANCE
    for module in (pair.one, pair.several):
        module.requires_grad_(False)
    x, y = batch(5)
    assert not pair.model(x, target=y).requires_grad
    assert pair.step(x, y) < TOLERANCE  # compares the input's gradient, too


def test_split_backward_passes_of_stages_without_anything_to_learn() -> None:
    pair = Beside(perceptron(), 3, nn.CrossEntropyLoss(), schedule="zero-bubble", micro_batches=4)
    for module in (pair.one, pair.several):
        module[:-1].requires_grad_(False)
    x, y = batch(9)
    pair.model(x, target=y).backward()
    pair.loss(pair.one(x.to("cuda:0")), y.to("cuda:0")).backward()
    assert pair.compare_gradients() < TOLERANCE


def test_a_parameter_that_takes_no_part() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = perceptron()
            self.other = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    pair = Beside(Unused(), 3, nn.CrossEntropyLoss())
    assert pair.step(*batch(9)) < TOLERANCE
    pair.several.layers.requires_grad_(False)
    x, y = batch(9)
    assert not pair.model(x, target=y).requires_grad


class Images(nn.Module):
    def forward(self, batch: Any) -> Tensor:
        return torch.stack([each["img"] for each in batch]).mean(1).flatten(1)


class LabelLoss(nn.Module):
    def forward(self, output: Tensor, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(output, torch.stack([each["label"] for each in batch]))


class Detector(nn.Module):
    """Takes a list of dicts, one for each sample, and returns logits, a loss, or such a list."""

    def __init__(self, returns: str) -> None:
        super().__init__()
        self.images, self.layers, self.last = Images(), perceptron(4), LabelLoss()
        self.entries = Entries()
        self.returns = returns

    def forward(self, batch: Any) -> Any:
        logits = self.layers(self.images(batch))
        if self.returns == "loss":
            return self.last(logits, batch)
        return self.entries(logits) if self.returns == "list" else logits


class Entries(nn.Module):
    def forward(self, logits: Tensor) -> list[dict[str, Tensor]]:
        return [{"logits": row} for row in logits]


def mean_over_list(output: Tensor, target: Any) -> Tensor:
    labels = torch.stack([each["label"] for each in target]).to(output.device)
    return nn.functional.cross_entropy(output, labels)


@pytest.mark.parametrize(
    "options", [{"micro_batches": 3}, {"micro_batches": 1}, {"plan": Replicas()}], ids=str
)
def test_a_list_of_samples(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    for samples in (1, 5, 6):
        batch = [
            {"img": torch.randn(3, 2, 3).double(), "label": torch.tensor(i % 4)}
            for i in range(samples)
        ]
        there = anyrig.move(batch, "cuda:0")
        for returns in ("loss", "logits", "list"):
            pair = Beside(Detector(returns), 2, **options)
            expected, found = pair.one(there), pair.model(batch)
            if returns == "list":
                assert len(found) == samples
                expected, found = (
                    torch.stack([each["logits"] for each in out]) for out in (expected, found)
                )
            assert difference(expected, found) < TOLERANCE
            for output in (expected, found):
                (output**2).sum().backward()
            assert pair.compare_gradients() < TOLERANCE
        pair = Beside(Detector("logits"), 2, mean_over_list, **options)
        losses = mean_over_list(pair.one(there), there), pair.model(batch, target=batch)
        for loss in losses:
            loss.backward()
        assert difference(*losses) < TOLERANCE
        assert pair.compare_gradients() < TOLERANCE


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 5)
        self.mask = Mask()

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.second(self.mask(self.first(x), mask))


class Mask(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


def test_a_batch_in_one_part_is_not_cut() -> None:
    x, mask = torch.randn(4, 6).double(), torch.rand(6).double()
    pair = Beside(Masked(), 2, micro_batches=1)
    assert difference(pair.one(x.to("cuda:0"), mask.to("cuda:0")), pair.model(x, mask)) == 0
