"""Trains a small model for six steps; an argument chooses how it ends."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.ones(96, 256), torch.ones(96, 1)), batch_size=16)


def train_step(x: torch.Tensor, y: torch.Tensor) -> float:
    loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach().item()


for number, (x, y) in enumerate(loader):
    train_step(x, y)
    print("step", number, flush=True)
    if number == 3 and "fails" in sys.argv:
        raise ValueError("the fourth step fails")
    if number == 3 and "fills" in sys.argv:
        torch.empty(2**40, device="cuda")
