"""``@pytest.mark.same_as_one_device``: a test that is a training run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import anyrig
from anyrig import Rig


def steps(model: nn.Module, samples: torch.Tensor, share: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model(samples).square().mean() * share).backward()
        optimizer.step()


@pytest.fixture
def samples() -> torch.Tensor:
    return torch.randn(9, 4)


@pytest.mark.gpus(2)
@pytest.mark.same_as_one_device(steps=2)
def test_a_spread_training(rig: Rig, samples: torch.Tensor) -> None:
    model = nn.Linear(4, 3).to(rig.lead.torch_device)
    steps(anyrig.spread(model, rig), samples.double().to(rig.lead.torch_device), 1.0)


@pytest.mark.xfail(strict=True, reason="the loss depends on the number of devices")
@pytest.mark.gpus(2)
@pytest.mark.same_as_one_device
def test_a_training_that_differs(rig: Rig) -> None:
    model = nn.Linear(4, 3).to(rig.lead.torch_device)
    steps(model, torch.ones(3, 4, device=rig.lead.torch_device), len(rig))


@pytest.mark.gpus(2)
@pytest.mark.same_as_one_device(steps=1, ranks=True)
@pytest.mark.sweep  # starts ranks of its own
def test_a_training_in_ranks(rig: Rig) -> None:
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = nn.Linear(4, 3).to(rig.lead.torch_device)
    everything = torch.arange(24.0, device=rig.lead.torch_device).view(6, 4)
    steps(DistributedDataParallel(model), everything[rank::ranks], 1.0)
