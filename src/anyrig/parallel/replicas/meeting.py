"""The replicas of one step, which exchange statistics and stop when one of them fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

import torch

from ...errors import ReplicaWaitError
from ..batch.cut import cut, join

T = TypeVar("T")
# The number of values for each channel, and their (mean, biased variance).
Moments = tuple[int, torch.Tensor]


class Stopped(BaseException):
    """Ends a replica after another has failed; modules that catch `Exception` do not catch it."""


class Meeting:
    """The replicas of one step on `devices`, which call `combine` in the same order."""

    def __init__(
        self,
        devices: Sequence[torch.device],
        *,
        exchanges: bool = True,
        wait_seconds: float = 300.0,
    ) -> None:
        self.devices = tuple(devices)
        self.exchanges = exchanges  # whether layers of batch normalization combine statistics
        self.stopped = False  # whether one of the replicas has failed
        self._wait_seconds = wait_seconds
        self._brought: dict[torch.device, Moments] = {}
        self._combined: dict[torch.device, Moments] = {}
        # The last replica to arrive calls this. A bound method would make a reference cycle.
        combine = partial(_combine, self.devices, self._brought, self._combined)
        self._barrier = threading.Barrier(len(devices), combine, wait_seconds)

    def attend(self, function: Callable[[], T]) -> T:
        """Call a function in this meeting, and stop all other replicas if it raises."""
        token = _current.set(self)
        try:
            return function()
        except BaseException:
            self.stop()
            raise
        finally:
            _current.reset(token)

    def stop(self) -> None:
        """Make all replicas raise `Stopped` where they next read a parameter or combine."""
        self.stopped = True
        self._barrier.abort()

    def combine(self, count: int, moments: torch.Tensor) -> Moments:
        """Return count and moments of the values of all replicas, given those of this replica.

        The moments, mean and biased variance, are of shape (2, channels). Raise ReplicaWaitError if
        a replica does not call `combine` in time, and `Stopped` if another replica has failed.
        """
        self._brought[moments.device] = count, moments
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            missing = [str(device) for device in self.devices if device not in self._brought]
            if self.stopped or not missing:
                raise Stopped from None
            raise ReplicaWaitError(
                f"waited {self._wait_seconds:g} s for the batch statistics of "
                f"{', '.join(missing)}; every replica must call the same layers of batch "
                "normalization in the same order"
            ) from None
        return self._combined.pop(moments.device)


# A context variable, since modules cannot pass the meeting to their layers.
_current: ContextVar[Meeting | None] = ContextVar("anyrig_meeting", default=None)


def is_inside() -> bool:
    """Return whether a replica is running in this thread."""
    return _current.get() is not None


def current_meeting() -> Meeting | None:
    """Return the meeting in which layers combine their statistics, or None."""
    meeting = _current.get()
    return meeting if meeting is not None and meeting.exchanges else None


def _combine(
    devices: Sequence[torch.device],
    brought: dict[torch.device, Moments],
    combined: dict[torch.device, Moments],
) -> None:
    """Move moments from `brought` to `combined`, as Chan, Golub and LeVeque (1979) combine them.

    `join` and `cut` sum the gradients of all devices in the order of the devices, not of arrival.
    """
    parts = [brought[device] for device in devices]
    total = sum(count for count, _ in parts)
    moments = join([moments[None] for _, moments in parts], devices[0])
    weights = moments.new_tensor([count / total for count, _ in parts]).view(-1, 1)
    means, variances = moments.unbind(1)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean) ** 2)).sum(0)
    whole = torch.stack([mean, variance]).expand_as(moments)
    results = cut(whole, [1] * len(parts), devices)
    combined.update(
        {device: (total, result[0]) for device, result in zip(devices, results, strict=True)}
    )
    brought.clear()
