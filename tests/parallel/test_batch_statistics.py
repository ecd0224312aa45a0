"""A first step warns of numbers that each device takes from its own samples."""

from __future__ import annotations

import warnings

import pytest
import torch
from pipeline.beside_one_device import rig_of
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import anyrig
from anyrig.parallel import BatchStatisticsWarning, DataParallel, Replicas

pytestmark = pytest.mark.gpus(2)

ROWS = 8


class Codebook(nn.Module):
    """Subtracts a moving average of its outputs, and counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("steps", torch.zeros(()))
        self.average: Tensor
        self.steps: Tensor

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        if self.training:
            self.steps += 1
            self.average.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - self.average


class Counting(Codebook):
    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return self.linear(x)


def normalizing() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def train(model: nn.Module) -> Tensor:
    output: Tensor = model(torch.randn(ROWS, 3, device="cuda:0"))
    output.sum().backward()
    return output


@pytest.mark.parametrize("plan", [None, Replicas(), Replicas(shares=[3, 1])])
def test_statistics_of_a_batch_are_named(plan: Replicas | None) -> None:
    model = DataParallel(normalizing().cuda(), [0, 1])
    if plan is not None:
        model = anyrig.spread(normalizing(), rig_of(2), plan)
    with pytest.warns(
        BatchStatisticsWarning, match=r"^1 \(BatchNorm1d\) normalizes .*=True"
    ) as seen:
        train(model)
    assert seen[0].filename == __file__
    train(model)  # once


@pytest.mark.parametrize("choice", ["sync_batch_norm", "local_statistics"])
def test_who_has_chosen_is_not_warned(choice: str) -> None:
    plan = Replicas(**{choice: True})
    train(anyrig.spread(normalizing(), rig_of(2), plan))
    if choice == "local_statistics":
        train(anyrig.spread(Codebook(), rig_of(2), plan))


def test_who_does_not_train_is_not_warned() -> None:
    frozen = normalizing()
    frozen[1].eval()  # type: ignore[index]
    train(anyrig.spread(frozen, rig_of(2), Replicas()))
    model = anyrig.spread(normalizing(), rig_of(2), Replicas())
    with torch.no_grad():
        model(torch.randn(ROWS, 3, device="cuda:0"))
    train(anyrig.spread(normalizing(), rig_of(1)))


def test_a_buffer_that_depends_on_samples_is_named() -> None:
    model = anyrig.spread(Codebook(), rig_of(2), Replicas())
    with pytest.warns(BatchStatisticsWarning, match="writes the buffer 'average' from the samples"):
        train(model)
    train(anyrig.spread(Codebook(), rig_of(1)))


def test_buffers_that_are_equal_on_all_devices_are_not_named() -> None:
    spectral = parametrizations.spectral_norm(nn.Linear(3, 3))
    tracked = nn.Sequential(nn.Linear(3, 3), nn.GroupNorm(1, 3))
    for module in (Counting(), spectral, tracked):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(anyrig.spread(module, rig_of(2), Replicas()))
