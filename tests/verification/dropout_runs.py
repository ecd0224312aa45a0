"""A training run with dropout that never seeds the random numbers. It is one rank's part."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from anyrig import Rig

STEPS = 2


def unseeded_dropout(_: Rig) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    for parameter in model.parameters():
        parameter.data = torch.linspace(0.1, 1, parameter.numel()).view_as(parameter)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.linspace(-1, 1, 32).view(8, 4)[dist.get_rank() :: dist.get_world_size()]
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
