"""Counting the steps of all optimizers: fused ones change parameters without a new version."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class StepCount:
    """How many steps the optimizers of this process have taken since it was made.

    Attributes:
        value: the number of steps.
    """

    def __init__(self) -> None:
        self.value = 0

    def add(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Count one step; a hook of `torch.optim.Optimizer`."""
        self.value += 1


@cache
def optimizer_steps() -> StepCount:
    """Return the one count of this process, which begins with the first call."""
    count = StepCount()
    register_optimizer_step_post_hook(count.add)
    return count
