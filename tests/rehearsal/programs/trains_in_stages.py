"""Trains in stages on two ranks with samples that a GPU draws, so that no loss has known values."""

from __future__ import annotations

import torch
from torch import nn

import anyrig

plan = anyrig.Pipeline(micro_batches=2, schedule="1f1b")
model = anyrig.spread(
    nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), None, plan, loss=nn.MSELoss()
)
x = torch.randn(4, 8, device="cuda")
loss = model(x, target=x)
loss.backward()
anyrig.print_once(f"a loss of shape {tuple(loss.shape)} in {loss.dtype}")
