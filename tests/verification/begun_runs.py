"""Correct training runs whose model would start from other values on one device.

Each function is one rank's part of a run.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from anyrig import Rig

STEPS = 2


def train(seed: int) -> None:
    """Train a model that begins with the values of a seed, on rank 0."""
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(24, 4, generator=generator))
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
    torch.manual_seed(seed)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def seeded_by_the_ranks(rig: Rig) -> None:
    """Seed with the number of ranks, which is another on one device."""
    train(dist.get_world_size())


def seeded_by_chance(rig: Rig) -> None:
    """Seed with a number that is new in each run."""
    train(int.from_bytes(os.urandom(4), "little"))


RUNS = ("seeded_by_the_ranks", "seeded_by_chance")
