"""Trains four steps with the plan of ANYRIG_PLAN, in a process group that `anyrig.spread` makes."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig

WIDTH = 1024

layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
model = anyrig.spread(nn.Sequential(*layers), loss=nn.MSELoss())
data = TensorDataset(torch.zeros(4 * 64, WIDTH))
loader = anyrig.distribute(DataLoader(data, batch_size=64), model)
optimizer = torch.optim.Adam(model.parameters())
for (x,) in loader:
    x = x.cuda()
    model(x, target=x).backward()
    optimizer.step()
    optimizer.zero_grad()
