"""Counting the steps of all optimizers: fused ones change parameters without a new version."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from torch.optim.optimizer import register_optimizer_step_post_hook


@dataclass
class StepCount:
    """How many steps the optimizers of this process have taken since it was made."""

    value: int = 0

    def add(self, *_: object) -> None:
        """Count one step; a hook of `torch.optim.Optimizer`."""
        self.value += 1


@cache
def optimizer_steps() -> StepCount:
    """Return the one count of this process, which begins with the first call."""
    count = StepCount()
    register_optimizer_step_post_hook(count.add)
    return count
