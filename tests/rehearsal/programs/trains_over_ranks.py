"""Trains a small model over ranks for six steps."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).to(device))
optimizer = torch.optim.SGD(model.parameters())
for number in range(6):
    model(torch.ones(8, 64, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", number, flush=True)
dist.destroy_process_group()
