"""Stop a training run on some devices, and continue on others, without map_location.

    python examples/resume_elsewhere.py --steps 10                          # on this machine
    anyrig rehearse --rig 2xT4 examples/resume_elsewhere.py --steps 20      # continues on two GPUs

The folder `runs/elsewhere` has the checkpoints. With torch.load you say where tensors go, by
map_location; `anyrig.resume` puts each tensor where its parameter is, on any number of devices.
"""

import argparse

import torch
from torch import nn

import anyrig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10, help="the last step of this run")
    parser.add_argument("--folder", default="runs/elsewhere")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    rig = anyrig.Rig.detect()
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).double()
    model = anyrig.spread(network, rig, loss=nn.MSELoss())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = anyrig.resume(arguments.folder, model=model, optimizer=optimizer)
    first = 0 if found is None else found.step
    print(f"from step {first} on {rig}")

    for step in range(first, arguments.steps):
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(step)).double()
        loss = model(x, target=x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}" if first < arguments.steps else "nothing to do")
    anyrig.save(arguments.folder, model=model, optimizer=optimizer, step=arguments.steps, keep=2)


if __name__ == "__main__":
    main()
