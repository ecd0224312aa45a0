"""Where the replicas of a step meet to exchange something: all come, one computes, all go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import ReplicaWaitError
from ..batch.cut import cut, join
from .stopping import Stop, Stopped

WAIT_SECONDS = 300.0
# How often it is looked whether another replica has failed.
_LOOK_SECONDS = 0.1

_current = threading.local()


class Meeting:
    """The replicas of one step, which call `combine` equally often and in the same order.

    Args:
        devices: of the replicas that take part.
        stop: raised when one of them fails.
        wait_seconds: how long to wait for the others.
    """

    def __init__(
        self, devices: Sequence[torch.device], stop: Stop, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        self._devices = tuple(devices)
        self._stop = stop
        self._wait_seconds = wait_seconds
        self._condition = threading.Condition()
        self._brought: dict[torch.device, tuple[int, torch.Tensor]] = {}
        self._taken: dict[torch.device, tuple[int, torch.Tensor]] = {}

    def combine(self, count: int, moments: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Return count, mean and variance of all values from those of each replica's.

        Args:
            count: how many values the replica has for each channel.
            moments: of shape (2, channels): mean and biased variance.

        Raises:
            ReplicaWaitError: not all replicas came in time; the message names those that did not.
            Stopped: one of them has failed.
        """
        device = moments.device
        deadline = time.monotonic() + self._wait_seconds
        with self._condition:
            # The last exchange is over when all have taken their result.
            self._wait(lambda: device not in self._taken, deadline)
            self._brought[device] = count, moments
            if len(self._brought) == len(self._devices):
                brought, self._brought = self._brought, {}
                self._taken = _combine([brought[place] for place in self._devices])
                self._condition.notify_all()
            else:
                self._wait(lambda: device in self._taken, deadline)
            result = self._taken.pop(device)
            self._condition.notify_all()
            return result

    def _wait(self, ready: Callable[[], bool], deadline: float) -> None:
        while not ready():
            if self._stop.raised:
                raise Stopped
            if time.monotonic() > deadline:
                missing = [str(d) for d in self._devices if d not in self._brought]
                raise ReplicaWaitError(
                    f"waited {self._wait_seconds:g} s for the batch statistics of "
                    f"{', '.join(missing)}; every replica must call the same layers of batch "
                    "normalization in the same order"
                )
            self._condition.wait(_LOOK_SECONDS)

    def attended(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return the function, such that this is the current meeting wherever it is called."""

        def call() -> Any:
            before = current_meeting()
            _current.value = self
            try:
                return function()
            finally:
                _current.value = before

        return call


def current_meeting() -> Meeting | None:
    """Return the meeting of the step that this thread computes a part of."""
    return getattr(_current, "value", None)


def _combine(
    parts: Sequence[tuple[int, torch.Tensor]],
) -> dict[torch.device, tuple[int, torch.Tensor]]:
    """Combine means and variances as Chan, Golub and LeVeque (1979): no squares of large sums.

    Moments are joined and results cut as batches are, so that gradients of all devices are summed
    in the order of the devices, not in that of their arrival.
    """
    devices = [moments.device for _, moments in parts]
    total = sum(count for count, _ in parts)
    moments = join([moments[None] for _, moments in parts], devices[0])
    weights = moments.new_tensor([count / total for count, _ in parts])
    weights = weights.view(-1, 1)
    means, variances = moments.unbind(1)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean) ** 2)).sum(0)
    whole = torch.stack([mean, variance]).expand_as(moments)
    results = cut(whole, [1] * len(parts), devices)
    return {device: (total, result[0]) for device, result in zip(devices, results, strict=True)}
