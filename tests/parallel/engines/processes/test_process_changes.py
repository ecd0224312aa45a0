"""What changes between steps is noticed by every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from process_pairs import Pair
from torch import Tensor, nn
from torch.nn import functional
from trained_models import CLASSES, WIDTH

CHANGES: dict[str, Callable[[Any], object]] = {
    "freeze": lambda module: module[0].requires_grad_(False),
    "a new layer": lambda module: module.__setitem__(1, nn.ReLU()),
    "written by hand": lambda module: module[0].weight.data.fill_(0.25),
    "data replaced": lambda module: setattr(module[2].bias, "data", torch.ones(CLASSES)),
    "loaded": lambda module: module.load_state_dict(
        {name: torch.full_like(each, 0.1) for name, each in module.state_dict().items()},
        assign=False,
    ),
    "parameters added": lambda module: module.append(nn.Identity()),
}

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_steps_are_noticed(change: str) -> None:
    pair = Pair()
    pair.step()
    pair.both(CHANGES[change])
    pair.step()
    pair.step()


def test_unfreezing() -> None:
    pair = Pair()
    pair.both(lambda module: module[0].requires_grad_(False))
    pair.step()
    pair.both(lambda module: module[0].requires_grad_(True))
    pair.step()


class Attributes(nn.Module):
    """Computes with values that a program changes between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.scale, self.settings = 1.0, {"power": [1]}
        self.register_buffer("shift", torch.zeros(CLASSES))
        self.plain = torch.ones(())
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.layer(x) * self.scale + self.shift
        return self.dropout(scaled * self.plain * self.settings["power"][0])


ATTRIBUTES: dict[str, Callable[[Any], object]] = {
    "number": lambda module: setattr(module, "scale", 2.0),
    "within a container": lambda module: module.settings["power"].__setitem__(0, 3),
    "buffer": lambda module: module.shift.add_(1.5),
    "buffer replaced": lambda module: setattr(module, "shift", torch.ones(CLASSES)),
    "plain tensor": lambda module: module.plain.mul_(3),
    "mode": lambda module: module.eval(),
}


@pytest.mark.parametrize("change", ATTRIBUTES)
def test_changed_attributes_are_noticed(change: str) -> None:
    pair = Pair(Attributes())
    pair.step()
    pair.both(ATTRIBUTES[change])
    pair.step()


def test_a_loss_that_reads_what_changes() -> None:
    factors = [1.0]
    pair = Pair(loss=lambda output, target: functional.cross_entropy(output, target) * factors[0])
    pair.step()
    factors[0] = 3.0
    pair.step()
