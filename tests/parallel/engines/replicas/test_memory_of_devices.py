"""No device uses more memory than the others if the loss is computed on the outputs' devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices

import anyrig

pytestmark = pytest.mark.gpus(3)

# A device's outputs have 10 MB, more than the workspace of cuBLAS that each product takes.
CLASSES, ROWS = 80_000, 96


def peaks_of(step: Callable[[Any, Tensor, Tensor], Tensor], **options: Any) -> list[int]:
    """Return the memory that a step adds on each device at its peak."""
    net = nn.Linear(8, CLASSES).to("cuda:0")
    model = anyrig.spread(net, first_devices(3), **options)
    x = torch.randn(ROWS, 8, device="cuda:0")
    y = torch.randint(CLASSES, (ROWS,), device="cuda:0")
    step(model, x, y).backward()
    before = [torch.cuda.memory_allocated(device) for device in range(3)]
    for device in range(3):
        torch.cuda.reset_peak_memory_stats(device)
    step(model, x, y).backward()
    return [torch.cuda.max_memory_allocated(i) - before[i] for i in range(3)]


def test_with_the_loss_in_the_replicas() -> None:
    lead, *others = peaks_of(lambda model, x, y: model(x, target=y), loss=nn.CrossEntropyLoss())
    assert lead <= 1.1 * max(others)


def test_with_scattered_outputs() -> None:
    criterion = anyrig.ParallelLoss(nn.CrossEntropyLoss())
    lead, *others = peaks_of(lambda model, x, y: criterion(model.scattered(x), y))
    assert lead <= 1.1 * max(others)


def test_gathered_outputs_fill_the_lead() -> None:
    """This test shows the problem that the other two tests are about."""
    criterion = nn.CrossEntropyLoss()
    lead, *others = peaks_of(lambda model, x, y: criterion(model(x), y))
    assert lead > 2 * max(others)
