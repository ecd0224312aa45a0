"""The replicas of one step: they exchange statistics, and all end when one of them fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TypeVar

import torch

from ...errors import ReplicaWaitError
from ..batch.cut import cut, join

WAIT_SECONDS = 300.0

T = TypeVar("T")
# How many values a replica has for each channel, and their (mean, biased variance).
Moments = tuple[int, torch.Tensor]


class Stopped(BaseException):
    """Ends a replica whose result nobody will see; not for modules that catch `Exception`."""


class Meeting:
    """The replicas of one step. They call `combine` equally often and in the same order.

    Args:
        devices: of the replicas that take part, in order.
        exchanges: whether layers of batch normalization exchange their statistics here.
        wait_seconds: how long to wait for the others.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        *,
        exchanges: bool = True,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.devices = tuple(devices)
        self.exchanges = exchanges
        self.stopped = False  # whether one of the replicas has failed
        self._wait_seconds = wait_seconds
        self._barrier = threading.Barrier(len(devices), timeout=wait_seconds)
        self._brought: dict[torch.device, Moments] = {}
        self._taken: dict[torch.device, Moments] = {}

    def attend(self, function: Callable[[], T]) -> T:
        """Call a function with this as its current meeting, and stop all others if it fails."""
        token = _current.set(self)
        try:
            return function()
        except BaseException:
            self.stop()
            raise
        finally:
            _current.reset(token)

    def stop(self) -> None:
        """Have all replicas end where they next read a parameter or meet."""
        self.stopped = True
        self._barrier.abort()

    def combine(self, count: int, moments: torch.Tensor) -> Moments:
        """Return count, mean and variance of all values from those of each replica's.

        Args:
            count: how many values the replica has for each channel.
            moments: of shape (2, channels): mean and biased variance.

        Raises:
            ReplicaWaitError: not all replicas came in time; the message names those that did not.
            Stopped: one of them has failed.
        """
        self._brought[moments.device] = count, moments
        if self._wait() == 0:  # one of them
            brought, self._brought = self._brought, {}
            self._taken = _combine([brought[device] for device in self.devices])
        self._wait()
        return self._taken.pop(moments.device)

    def _wait(self) -> int:
        """Wait for the others. Each gets another number, from 0 on."""
        try:
            return self._barrier.wait()
        except threading.BrokenBarrierError:
            missing = [str(device) for device in self.devices if device not in self._brought]
            if self.stopped or not missing:
                raise Stopped from None
            raise ReplicaWaitError(
                f"waited {self._wait_seconds:g} s for the batch statistics of "
                f"{', '.join(missing)}; every replica must call the same layers of batch "
                "normalization in the same order"
            ) from None


# No argument can carry the meeting, since modules call their layers. Each thread has its own.
_current: ContextVar[Meeting | None] = ContextVar("anyrig_meeting", default=None)


def is_inside() -> bool:
    """Say whether a replica is being called here: what is spread in it is called as it is."""
    return _current.get() is not None


def current_meeting() -> Meeting | None:
    """Return where a layer of this replica exchanges statistics; None if it does not."""
    meeting = _current.get()
    return meeting if meeting is not None and meeting.exchanges else None


def _combine(parts: Sequence[Moments]) -> dict[torch.device, Moments]:
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
