"""The replicas of one step, which exchange numbers and stop when one of them fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import torch

from ....errors import ReplicaWaitError, SpreadError

T = TypeVar("T")
V = TypeVar("V")
# Called with the devices and what the replica on each of them brought; returns what each gets.
Combine = Callable[[Sequence[torch.device], Sequence[V]], Sequence[V]]


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
        self._brought: dict[torch.device, tuple[str, Combine[Any], Any]] = {}
        self._combined: dict[torch.device, Any] = {}
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

    def combine(self, device: torch.device, value: V, by: Combine[V], what: str) -> V:
        """Return what `by` makes of the values of all replicas, given that of the one on `device`.

        Raise ReplicaWaitError, which names `what`, if a replica does not bring one in time, and
        `Stopped` if another replica has failed.
        """
        self._brought[device] = what, by, value
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            missing = [str(device) for device in self.devices if device not in self._brought]
            if self.stopped or not missing:
                raise Stopped from None
            raise ReplicaWaitError(
                f"waited {self._wait_seconds:g} s for {what} of {', '.join(missing)}; every "
                "replica must call the same layers and losses in the same order"
            ) from None
        combined: V = self._combined.pop(device)
        return combined


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
    brought: dict[torch.device, tuple[str, Combine[Any], Any]],
    combined: dict[torch.device, Any],
) -> None:
    """Move values from `brought` to `combined`."""
    what, by, _ = brought[devices[0]]
    for device in devices[1:]:
        other = brought[device][0]
        if other != what:
            raise SpreadError(
                f"the replica on {devices[0]} has reached {what}, but the one on {device} has "
                f"reached {other}; every replica must call the same layers and losses in the same "
                "order"
            )
    results = by(devices, [brought[device][2] for device in devices])
    combined.update(zip(devices, results, strict=True))
    brought.clear()
