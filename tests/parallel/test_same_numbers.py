"""Spread models of each kind, on each number of devices, learn what one device learns, to 1e-9."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from trained_models import (
    CLASSES,
    EXAMPLES,
    OPTIMIZERS,
    assert_same_numbers,
    first_devices,
    on_lead,
    train,
)

import anyrig

# Without cuDNN, as on a virtual GPU, PyTorch warns when a recurrent module reaches CUDA.
pytestmark = pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")

SAMPLES = 11
COUNTS = [
    pytest.param(count, marks=pytest.mark.gpus(count), id=f"on_{count}")
    for count in (1, 2, 3, 4, 8)
]


def shares_of(kind: str, devices: int) -> str | list[float]:
    if kind == "even":
        return kind
    if kind == "uneven":
        return [float(1 + position) for position in range(devices)]
    # Every second device gets nothing, including the lead.
    return [float(position % 2) for position in range(devices)] if devices > 1 else [1.0]


@pytest.fixture(autouse=True)
def double_precision() -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("fused", "optimizer"), [(False, "sgd"), (True, "adam")])
@pytest.mark.parametrize("shares", ["even", "uneven", "empty"])
@pytest.mark.parametrize("devices", COUNTS)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_three_steps(kind: str, devices: int, shares: str, fused: bool, optimizer: str) -> None:
    example = EXAMPLES[kind]
    module = example.build()
    criterion = nn.CrossEntropyLoss()
    # An ordinary batch, one smaller than the rig, and one that does not divide evenly.
    batches = [
        anyrig.move((example.inputs(samples), torch.randint(CLASSES, (samples,))), "cuda:0")
        for samples in (SAMPLES, min(3, devices), SAMPLES - 1)
    ]
    one = on_lead(module)
    expected = train(one, batches, optimizer, lambda inputs, y: criterion(one(*inputs), y))

    several = on_lead(module)
    model = anyrig.spread(
        several,
        first_devices(devices),
        plan=anyrig.Replicas(shares=shares_of(shares, devices)),
        loss=criterion if fused else None,
    )
    found = train(
        several,
        batches,
        optimizer,
        lambda inputs, y: model(*inputs, target=y) if fused else criterion(model(*inputs), y),
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert_same_numbers(several, one)


@pytest.mark.gpus(3)
@pytest.mark.parametrize("accumulates", [False, True], ids=["", "accumulating"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_way_to_change_parameters(optimizer: str, accumulates: bool) -> None:
    """Some ways do not show that the replicas' copies are outdated."""
    if optimizer == "Adagrad, fused" and torch.__version__ < (2, 12):
        pytest.skip("before 2.12 CUDA has no fused Adagrad")
    module = EXAMPLES["perceptron"].build()
    batches = [
        ((torch.randn(rows, 8, device="cuda:0"),), torch.randint(CLASSES, (rows,), device="cuda:0"))
        for rows in (SAMPLES, 1, SAMPLES, 2, SAMPLES)
    ]
    one, several = on_lead(module), on_lead(module)
    model = anyrig.spread(several, first_devices(3), loss=nn.CrossEntropyLoss())

    def learn(inputs: Any, y: torch.Tensor) -> torch.Tensor:
        if accumulates:
            with model.no_sync():
                model(*inputs, target=y).backward()
        return model(*inputs, target=y)

    def learn_alone(inputs: Any, y: torch.Tensor) -> torch.Tensor:
        if accumulates:
            nn.functional.cross_entropy(one(*inputs), y).backward()
        return nn.functional.cross_entropy(one(*inputs), y)

    expected = train(one, batches, optimizer, learn_alone)
    found = train(several, batches, optimizer, learn)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert_same_numbers(several, one)
    with torch.no_grad():
        x = batches[0][0][0]
        torch.testing.assert_close(model(x), one(x), rtol=1e-9, atol=1e-12)


@pytest.mark.gpus(3)
@pytest.mark.parametrize("shares", [[1, 1, 1], [1, 5, 2], [0, 1, 3]])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_what_a_criterion_ignores_is_not_counted(reduction: str, shares: list[int]) -> None:
    module = nn.Linear(4, CLASSES)
    x, y = torch.randn(12, 4, device="cuda:0"), torch.randint(CLASSES, (12,), device="cuda:0")
    y[:7] = -100
    weight = torch.rand(CLASSES, device="cuda:0")
    criterion = nn.CrossEntropyLoss(weight, reduction=reduction, label_smoothing=0.1)
    one, several = on_lead(module), on_lead(module)
    expected = criterion(one(x), y)
    expected.backward()
    model = anyrig.spread(
        several, first_devices(3), plan=anyrig.Replicas(shares=shares), loss=criterion
    )
    found = model(x, target=y)
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(several.weight.grad, one.weight.grad, rtol=1e-9, atol=1e-14)


@pytest.mark.gpus(2)
def test_means_over_tokens() -> None:
    """Replicas with few counted words must have less weight than replicas with many."""
    module = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9))
    words = torch.randint(9, (6, 5), device="cuda:0")
    target = words.roll(1, 1)
    target[:3, 1:] = -100
    inner = nn.CrossEntropyLoss()

    def criterion(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return inner(logits.flatten(0, 1), target.flatten())

    one, several = on_lead(module), on_lead(module)
    criterion(one(words), target).backward()
    summed = nn.CrossEntropyLoss(reduction="sum")
    model = anyrig.spread(several, first_devices(2))
    outputs = model(words)
    (summed(outputs.flatten(0, 1), target.flatten()) / (target != -100).sum()).backward()
    torch.testing.assert_close(several[1].weight.grad, one[1].weight.grad, rtol=1e-9, atol=1e-14)

    class Transposed(nn.Module):
        def __init__(self, inside: nn.Module) -> None:
            super().__init__()
            self.inside = inside

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.inside(words).transpose(1, 2)

    several.zero_grad()
    fused = anyrig.spread(
        Transposed(several), first_devices(2), plan=anyrig.Replicas(shares=[2, 1]), loss=inner
    )
    fused(words, target=target).backward()
    torch.testing.assert_close(several[1].weight.grad, one[1].weight.grad, rtol=1e-9, atol=1e-14)


@pytest.mark.gpus(4)
@pytest.mark.parametrize("shares", ["even", "uneven", "empty"])
def test_the_parallel_loss(shares: str) -> None:
    module = nn.Linear(4, CLASSES)
    x, y = torch.randn(10, 4, device="cuda:0"), torch.randint(CLASSES, (10,), device="cuda:0")
    criterion = nn.CrossEntropyLoss()
    one, several = on_lead(module), on_lead(module)
    expected = criterion(one(x), y)
    expected.backward()
    devices = first_devices(4).torch_devices
    parts = anyrig.parallel.scatter(x, devices, shares_of(shares, 4))
    outputs = anyrig.parallel.parallel_apply(anyrig.parallel.replicate(several, devices), parts)
    found = anyrig.ParallelLoss(criterion)(outputs, y)
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(several.weight.grad, one.weight.grad, rtol=1e-9, atol=1e-14)
