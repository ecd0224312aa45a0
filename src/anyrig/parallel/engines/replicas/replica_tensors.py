"""The parameters and buffers of a replica, read lazily, one bucket at a time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .buckets import Bucket, Slot
from .gradients import Step, Tokens
from .meeting import Meeting, Stopped


class Reader:
    """Reads the tensors of the replica on the other device at position `device`."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._step: Step | None = None
        self._tokens: dict[Bucket, torch.Tensor] = {}
        self._meeting: Meeting | None = None
        self._taken: dict[Bucket, list[torch.Tensor]] = {}
        self.replaced: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def rest(self) -> None:
        """Drop the tensors of the previous step, and undo the assignments of its forward."""
        self._step, self._tokens, self._meeting, self._taken = None, {}, None, {}
        while self.replaced:
            self.replaced.pop()()

    def begin(self, step: Step, tokens: Tokens, among: int, meeting: Meeting | None) -> None:
        """Read the tensors of `step` from now on; `among` is the position among active devices."""
        self._step, self._meeting, self._taken = step, meeting, {}
        self._tokens = {bucket: active[among] for bucket, active in tokens.items()}

    def read(self, slot: Slot) -> torch.Tensor:
        """Return a tensor; the current stream, not the host, waits for the copy.

        Raise `Stopped` if another replica has failed.
        """
        if self._meeting is not None and self._meeting.stopped:
            raise Stopped
        bucket = slot.bucket
        if bucket not in self._taken:
            with self._lock:
                if bucket not in self._taken:
                    assert self._step is not None, "a replica exists from its first step on"
                    token = self._tokens.get(bucket)
                    self._taken[bucket] = self._step.take(bucket, self._device, token)
        return self._taken[bucket][slot.position]


class ReplicaTensors(dict[str, Any]):
    """The `_parameters` or `_buffers` of a replica.

    `torch.nn.Module` looks tensors up here by name, so each is read where the forward uses it.
    """

    def __init__(self, reader: Reader, names: dict[str, Slot | None]) -> None:
        super().__init__(names)
        self._reader = reader

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        # Any other value was assigned by the replica's forward.
        return self._reader.read(value) if isinstance(value, Slot) else value

    def __setitem__(self, name: str, value: Any) -> None:
        before = super().get(name)
        if isinstance(before, Slot):
            # Restored before the next step.
            self._reader.replaced.append(functools.partial(super().__setitem__, name, before))
        super().__setitem__(name, value)

    # The methods of dict do not call __getitem__.
    get: Any = Mapping.get
    values: Any = Mapping.values
    items: Any = Mapping.items

    def __iter__(self) -> Iterator[str]:  # makes dict(...) and {**...} call __getitem__
        return super().__iter__()

    def pop(self, name: str, *default: Any) -> Any:
        """Remove and return a tensor."""
        value = self.get(name, *default) if default else self[name]
        super().pop(name, None)
        return value

    def __reduce__(self) -> Any:
        # A saved replica has plain tensors.
        return dict, (self.copy(),)

    def copy(self) -> dict[str, Any]:
        """Return a plain dict of the present tensors."""
        return {name: self[name] for name in self}
