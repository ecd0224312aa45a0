"""Trains on two GPUs, the first of which computes on two streams."""

import torch
from torch import nn

first = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to("cuda:0")
second = nn.Linear(512, 512).to("cuda:1")
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()])
side = torch.cuda.Stream()
for _ in range(4):
    x = torch.ones(2048, 512).to("cuda:0")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        products = x @ x.T @ x
    loss = second(first(x).to("cuda:1")).square().mean()
    torch.cuda.current_stream().wait_stream(side)
    (loss + products.mean().to("cuda:1")).backward()
    optimizer.step()
    optimizer.zero_grad()
