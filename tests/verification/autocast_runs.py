"""Training runs with autocast and gradient scalers. Each function is one rank's part of a run."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from anyrig import Rig

SAMPLES, FEATURES, CLASSES, STEPS = 16, 6, 5, 2


class Net(nn.Module):
    """Computes in autocast's dtypes, or with explicit casts to float32, as in many scripts."""

    def __init__(self, is_explicit: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(FEATURES, 64), nn.Linear(64, CLASSES)
        self.is_explicit = is_explicit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        if self.is_explicit:
            hidden = hidden.to(torch.bfloat16)
        return self.last(hidden)


def _train(
    dtype: torch.dtype, *, scales: bool = False, is_explicit: bool = False, reduces: str = "ddp"
) -> None:
    model = Net(is_explicit)
    if reduces == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=scales)
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(STEPS * SAMPLES, FEATURES, generator=generator)
    dataset = TensorDataset(inputs, torch.randint(CLASSES, (STEPS * SAMPLES,), generator=generator))
    ranks = dist.get_world_size()
    sampler = DistributedSampler(dataset, ranks, dist.get_rank(), shuffle=False)
    for x, y in DataLoader(dataset, SAMPLES // ranks, sampler=sampler):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if reduces == "sum":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        scaler.step(optimizer)
        scaler.update()


def autocast(_: Rig) -> None:
    _train(torch.bfloat16)


def autocast_with_a_scaler(_: Rig) -> None:
    _train(torch.float16, scales=True)


def autocast_and_a_conversion(_: Rig) -> None:
    _train(torch.bfloat16, is_explicit=True)


def sums_under_autocast(_: Rig) -> None:
    _train(torch.bfloat16, reduces="sum")


def sums_with_a_scaler(_: Rig) -> None:
    _train(torch.float16, scales=True, reduces="sum")


# The exit status, and a part of the text: in float64, then in the script's own types.
TIMES = "\u00d7"
EXPECTED = {
    "autocast": (0, "in float64"),
    "autocast_with_a_scaler": (0, "in float64"),
    "sums_under_autocast": (1, TIMES + "4 what one device"),
    "sums_with_a_scaler": (1, TIMES + "4 what one device"),
}
IN_OWN_TYPES = {
    "autocast": (0, "in bfloat16"),
    "autocast_with_a_scaler": (0, "in float16"),
    "autocast_and_a_conversion": (0, "in bfloat16"),
    "sums_under_autocast": (1, TIMES + "4 what one device"),
    "sums_with_a_scaler": (1, TIMES + "4 what one device"),
}
