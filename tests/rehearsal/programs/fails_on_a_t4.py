"""Trains for two steps, fails on a T4, and needs more than 1 GiB."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if "T4" in torch.cuda.get_device_name():
    raise ValueError("no T4, please")
model = nn.Linear(2**16, 2**10, bias=False).cuda()  # 256 MiB
optimizer = torch.optim.Adam(model.parameters())
for (x,) in DataLoader(TensorDataset(torch.ones(4, 2**16)), batch_size=2):
    model(x.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", sys.argv[1:], flush=True)
