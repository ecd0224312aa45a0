"""Train on one device: the best of this machine, or the one that you name.

    python examples/device_agnostic.py                       # an accelerator, else the CPU
    python examples/device_agnostic.py --device cpu
    anyrig rehearse --rig T4 examples/device_agnostic.py     # on a virtual GPU

The script never asks for the vendor: it runs on CUDA, ROCm, XPU, MPS and the CPU.
"""

import argparse

import torch
from torch import nn

import anyrig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    anyrig.add_device_arguments(parser)
    rig = anyrig.rig_from_arguments(parser.parse_args())
    device = rig.lead.torch_device
    print(f"training on {rig.lead} - {rig.reason}")

    torch.manual_seed(0)
    x = torch.rand(256, 1) * 6
    y = x.sin()
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = anyrig.move((x, y), device)  # returns the moved batch, as x.to(device) does
    for step in range(200):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == 199:
            print(f"step {step:3} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
