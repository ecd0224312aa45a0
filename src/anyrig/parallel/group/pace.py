"""How fast this rank is: told after each backward pass to whoever divides the batches."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import torch

from .step_time import StepTime

_BALANCE = f"{__package__}.balance"


class Pace:
    """Measures the steps of a model, while somebody wants to know.

    The second step of a model with DDP is longer than it should be: all ranks arrange their buckets
    together then.

    Args:
        device: where the model computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._unread: deque[StepTime] = deque()

    def start(self, rows: int) -> StepTime | None:
        """Return the time of a step that begins now; None if nobody asks."""
        return None if _balance() is None else StepTime(self._device, rows)

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
    module = sys.modules.get(_BALANCE)  # not there before somebody divides by speed
    return None if module is None else module.current_balance()
