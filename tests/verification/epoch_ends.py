"""Training runs that find the end of an epoch by ``len(loader)``, and accumulate until there.

Each function is one rank's part of a run, which steps after every third micro-batch and after the
last one. `EXPECTED` has the exit code of each, and a part of what is said.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from anyrig import Rig

STEPS = 5
WINDOW = 3
# Micro-batches of a rank in an epoch: two windows, and a short one.
EPOCH = 8
# Also in the run on one device, which is in a group of one.
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


def loader_of(samples: int, batch: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples * RANKS, 4, generator=generator)
    labels = torch.randint(3, (len(inputs),), generator=generator)
    data = TensorDataset(inputs, labels)
    return DataLoader(data, batch, sampler=DistributedSampler(data, seed=1))


def train(*, reduces_end: bool) -> None:
    """Train for two epochs."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    training, validation = loader_of(2 * EPOCH, 2), loader_of(12, 4)
    assert len(validation) == 3
    steps = -(-len(training) // WINDOW)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=2, steps_per_epoch=steps)
    for _ in range(2):
        assert len(training) == EPOCH
        for number, (x, y) in enumerate(training, 1):
            is_full = number % WINDOW == 0
            is_last = is_full or number == len(training)
            with _reducing(model, is_last if reduces_end else is_full):
                (nn.functional.cross_entropy(model(x), y) / WINDOW).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()


@contextlib.contextmanager
def _reducing(model: DistributedDataParallel, reduces: bool) -> Iterator[None]:
    with contextlib.nullcontext() if reduces else model.no_sync():
        yield


def reduced(rig: Rig) -> None:
    """Reduce the short window, too."""
    train(reduces_end=True)


def not_reduced(rig: Rig) -> None:
    """Leave the short window to each rank."""
    train(reduces_end=False)


EXPECTED = {
    "reduced": (0, "the same on the rig and on one device"),
    "not_reduced": (1, "never reduced"),
}
