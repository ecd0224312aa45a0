"""How fast this rank is: told after each backward pass to whoever divides the batches."""

from __future__ import annotations

import importlib
from collections import deque
from typing import Any

import torch

from .step_time import StepTime

# The first steps allocate, and in the second DDP arranges its buckets together with all ranks.
_WARM_UP = 2


class Pace:
    """Measures the steps of a model, while somebody wants to know.

    Args:
        device: where the model computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps = 0
        self._unread: deque[StepTime] = deque()

    def start(self, rows: int) -> StepTime | None:
        """Return the time of a step that begins now; None if nobody asks."""
        self._steps += 1
        if self._steps <= _WARM_UP or _balance() is None:
            return None
        return StepTime(self._device, rows)

    def stop(self, step: StepTime | None) -> None:
        """End a step, and tell those that are known by now: a device is behind its host."""
        if step is not None and step.stop():
            self._unread.append(step)
        while self._unread and (seconds := self._unread[0].read()) is not None:
            rows = self._unread.popleft().rows
            balance = _balance()
            if balance is not None:
                balance.report(rows, seconds)


def _balance() -> Any:
    """Return the object whose ``report(rows, seconds)`` wants to know, or None."""
    try:
        module = importlib.import_module(".balance", __package__)
    except ImportError:
        return None
    return module.current_balance()
