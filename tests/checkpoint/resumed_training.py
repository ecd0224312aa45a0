"""A training run that can be stopped after any step and resumed, in one process or over ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import anyrig

SAMPLES, BATCH_SIZE, EPOCHS = 52, 8, 3  # the last batch of an epoch has 4 samples
STEPS = EPOCHS * 7


def train(
    folder: Path,
    stop_after: int | None,
    spread: Callable[[nn.Module], nn.Module] = lambda model: model,
    workers: int = 2,
) -> dict[str, Tensor]:
    """Train from the latest checkpoint of `folder` to the end, or until a step; return the state.

    Every process begins with another seed, so what is not restored differs.
    """
    torch.manual_seed(1000 + (stop_after or 0) if folder.exists() else 0)
    model = spread(
        nn.Sequential(
            nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1)
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = StepLR(optimizer, 4, 0.7)
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 3, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader: Any = anyrig.distribute(DataLoader(data, BATCH_SIZE, shuffle=True, num_workers=workers))
    objects = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "loader": loader,
    }
    step = 0
    if (found := anyrig.resume(folder, **objects)) is not None:
        assert found.step is not None
        assert found["losses"] == found.step
        step = found.step
    while loader.epoch < EPOCHS:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step == stop_after:
                anyrig.save(folder, step=step, losses=step, keep=1, **objects)
                return {}
    assert step == STEPS
    return {name: value.clone() for name, value in model.state_dict().items()}
