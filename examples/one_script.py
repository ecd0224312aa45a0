"""Train a small network. Every way to run this script prints the same loss.

    python examples/one_script.py                                           # one process
    anyrig run --device cpu --nproc-per-device 2 examples/one_script.py     # two ranks
    torchrun --nproc-per-node 2 examples/one_script.py                      # two ranks
    anyrig rehearse --rig 2xT4 examples/one_script.py                       # one process, two GPUs
    anyrig rehearse --rig 2xT4 --nproc-per-device 1 examples/one_script.py  # two ranks, two GPUs

In a notebook, call `train()`, or `anyrig.launch(train, rig="cpu", nproc_per_device=2)`.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig


def train(epochs: int = 3) -> float:
    """Fit a small network to a sine; return the mean loss of the last epoch's batches."""
    torch.manual_seed(0)
    x = torch.rand(100, 1, dtype=torch.float64) * 6
    loader = DataLoader(TensorDataset(x, x.sin()), batch_size=24, shuffle=True)  # global batches
    network = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).double()

    rig = anyrig.Rig.detect()  # all devices of this process; in a rank, the rank's own device
    model = anyrig.spread(network, rig, loss=nn.MSELoss())
    loader = anyrig.prefetch(anyrig.distribute(loader, model, seed=0), rig)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    samples, mean_loss = 0, float("nan")
    for _ in range(epochs):
        losses = []
        for inputs, targets in loader:
            loss = model(inputs, target=targets)  # of the global batch, on every rank
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            samples += len(inputs)
        mean_loss = torch.stack(losses).mean().item()
    all_samples = sum(anyrig.gather_over_ranks([samples]))
    anyrig.print_once(f"loss {mean_loss:.9f} after {all_samples} samples")
    return mean_loss


if __name__ == "__main__":
    train()
