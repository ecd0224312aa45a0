"""Eleven programs that run out of memory, each for a reason of its own.

Each runs on a virtual GPU of 1 GiB. The line that the report must name ends with ``# HERE``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MIB = 2**20
GPU = "cuda:0"


def megabytes(count: int) -> Tensor:
    return torch.empty(count * MIB // 4, device=GPU)


def wide(width: int, layers: int = 4) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)]).to(GPU)


def large_batch() -> None:
    net = nn.Linear(64, 1).to(GPU)
    samples = torch.empty(5 * MIB, 64)
    x = samples.to(GPU)  # HERE
    net(x).sum().backward()


def large_activations() -> None:
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(16)])
    net.to(GPU)
    x = torch.randn(2**16, 256, device=GPU)
    net(x).sum().backward()  # HERE


def large_optimizer_state() -> None:
    net = wide(4096, 4)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(2, 4096, device=GPU)).sum().backward()
    optimizer.step()  # HERE


def cache_list() -> None:
    cache = []
    with torch.no_grad():
        net = wide(64, 1)
        for _ in range(1000):
            net(torch.randn(1000, 64, device=GPU))
            cache.append(megabytes(8))  # HERE


def kept_batches() -> None:
    net = wide(1024, 1)
    batches = []
    for _ in range(1000):
        batches.append(torch.randn(4096, 1024).to(GPU))  # HERE
        net(batches[-1]).sum().backward()


def kept_losses() -> None:
    net = wide(1024, 2)
    total = torch.zeros((), device=GPU)
    for _ in range(1000):
        loss = net(torch.randn(4096, 1024, device=GPU)).square().mean()
        total += loss  # HERE


def kept_outputs() -> None:
    net = wide(1024, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outputs = []
    for _ in range(1000):
        output = net(torch.randn(4096, 1024, device=GPU))
        output.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output)  # HERE


def fragmentation() -> None:
    pieces = [megabytes(20), *(megabytes(5) for _ in range(180))]
    del pieces[1::2]
    large = torch.empty(300 * MIB // 4, device=GPU)  # HERE
    del large


def another_process() -> None:
    # This process stands in for another: it holds memory outside of PyTorch.
    net = wide(1024, 2)
    net(torch.randn(100_000, 1024, device=GPU)).sum().backward()  # HERE


def evaluation_with_gradients() -> None:
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(16)])
    net.to(GPU).eval()
    x = torch.randn(2**16, 256, device=GPU)
    correct = net(x).sum()  # HERE
    del correct


def growing_recurrent_state() -> None:
    cell = nn.LSTMCell(256, 1024).to(GPU)
    h = c = torch.zeros(512, 1024, device=GPU)
    for _ in range(1000):
        h, c = cell(torch.randn(512, 256, device=GPU), (h, c))  # HERE
