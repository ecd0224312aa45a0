"""A training run with logical shards, which any number of ranks can continue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.parallel.plans import Exact, Replicas, Shards

LOGICAL_SHARDS = 12
WITHIN = {"replicate": Replicas(), "shard": Shards()}
# The last of three global batches has 2 samples: ranks, and most logical shards, have none.
SAMPLES, BATCH_SIZE = 42, 20


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 19),
        nn.LayerNorm(19),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Sequential(nn.Linear(19, 33), nn.Tanh(), nn.Dropout(0.1)),
        nn.Linear(33, 7),
    )


def train(
    folder: Path,
    how: str = "replicate",
    steps: int = 9,
    end: Callable[[int], None] = lambda step: None,
    save_every: int = 1,
) -> dict[str, Tensor]:
    """Train from the latest checkpoint of `folder` on, and return the parameters.

    Every second step adds up the gradients of two batches. ``end(step)`` is called after a step.
    """
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 5, generator=generator)
    targets = torch.randint(7, (SAMPLES,), generator=generator)
    loss = nn.CrossEntropyLoss(torch.rand(7, generator=generator))
    model: Any = anyrig.spread(
        make_model(), "cpu", plan=Exact(LOGICAL_SHARDS, WITHIN[how]), loss=loss
    )
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loader: Any = anyrig.distribute(
        DataLoader(TensorDataset(inputs, targets), BATCH_SIZE, shuffle=True),
        model,
    )
    objects = {"model": model, "optimizer": optimizer, "loader": loader}
    found = anyrig.resume(folder, **objects, exact=True)
    step = 0 if found is None else found.step or 0
    while step < steps:
        for x, y in loader:
            step += 1
            model(x, target=y).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
                if step % save_every == 0:
                    anyrig.save(folder, step=step, keep=2, **objects)
            end(step)
            if step == steps:
                break
    return whole_state(model)


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of a model, with whole tensors instead of shards."""
    state = model.state_dict()
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in state.items()
    }
