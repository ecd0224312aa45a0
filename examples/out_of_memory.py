"""A script that runs out of memory, and the commands that say why and what would help.

    anyrig rehearse --rig 1GiB --assume-values examples/out_of_memory.py               # why
    anyrig rehearse --rig 1GiB --assume-values --remedies examples/out_of_memory.py    # what helps
    anyrig fit --rig T4,RTX-4090 --vary --batch-size=1..4096 examples/out_of_memory.py
    anyrig run --watch memory examples/out_of_memory.py       # the same reports on a real GPU

The rehearsals need no GPU: with --assume-values nothing is computed and no memory is filled.
"""

import argparse

import torch
from torch import nn

import anyrig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=8192)
    batch_size = parser.parse_args().batch_size
    device = anyrig.Rig.detect().lead.torch_device
    blocks = (
        nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4)
    )
    model = nn.Sequential(*blocks, nn.Linear(1024, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(3):
        x = torch.randn(batch_size, 1024, device=device)
        y = torch.randint(10, (batch_size,), device=device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    print(f"mean loss {torch.stack(losses).mean().item():.3f}")


if __name__ == "__main__":
    main()
