"""Where a replica finds its parameters and buffers: read lazily, a bucket at a time."""

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
    """Gives the replica at this position its tensors, for the step it is in."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._step: Step | None = None
        self._tokens: dict[Bucket, torch.Tensor] = {}
        self._meeting: Meeting | None = None
        self._taken: dict[Bucket, list[torch.Tensor]] = {}
        self.replaced: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def rest(self) -> None:
        """Forget the tensors of the step before, and what its forward put in their place."""
        self._step, self._tokens, self._meeting, self._taken = None, {}, None, {}
        while self.replaced:
            self.replaced.pop()()

    def begin(self, step: Step, tokens: Tokens, among: int, meeting: Meeting | None) -> None:
        """Read the tensors of `step` from now on, as the device at this place among the active."""
        self._step, self._meeting, self._taken = step, meeting, {}
        self._tokens = {bucket: of_devices[among] for bucket, of_devices in tokens.items()}

    def read(self, slot: Slot) -> torch.Tensor:
        """Return a tensor, once its bucket is on the way; the stream waits, not the host.

        Raises:
            Stopped: another replica has failed.
        """
        if self._meeting is not None and self._meeting.stopped:
            raise Stopped
        taken = self._taken.get(slot.bucket)
        if taken is None:
            taken = self._take(slot.bucket)
        return taken[slot.position]

    def _take(self, bucket: Bucket) -> list[torch.Tensor]:
        with self._lock:
            if bucket not in self._taken:
                assert self._step is not None, "replicas are there from the first step on"
                self._taken[bucket] = self._step.take(
                    bucket, self._device, self._tokens.get(bucket)
                )
            return self._taken[bucket]


class ReplicaTensors(dict[str, Any]):
    """What a replica has as `_parameters` or `_buffers`.

    `torch.nn.Module` looks parameters up here by name, so that whoever reads one, the layer itself
    or a function that is handed ``self.fc.weight``, gets it after its copy has arrived.
    """

    def __init__(self, reader: Reader, names: dict[str, Slot | None]) -> None:
        super().__init__(names)
        self._reader = reader

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        # What a replica's forward has itself assigned is returned as it is.
        return self._reader.read(value) if isinstance(value, Slot) else value

    def __setitem__(self, name: str, value: Any) -> None:
        before = super().get(name)
        if isinstance(before, Slot):
            # The next step begins with what the forward replaces here.
            self._reader.replaced.append(functools.partial(super().__setitem__, name, before))
        super().__setitem__(name, value)

    # A dict's own ways of reading pass __getitem__ by.
    get: Any = Mapping.get
    values: Any = Mapping.values
    items: Any = Mapping.items

    def __iter__(self) -> Iterator[str]:  # dict(...) and {**...} do as well, unless there is one
        return super().__iter__()

    def pop(self, name: str, *default: Any) -> Any:
        """Remove and return a tensor."""
        value = self.get(name, *default) if default else self[name]
        super().pop(name, None)
        return value

    def __reduce__(self) -> Any:
        # A saved replica has its tensors, and no way back to the module.
        return dict, (self.copy(),)

    def copy(self) -> dict[str, Any]:
        """Return a plain dict of the tensors as they are now."""
        return {name: self[name] for name in self}
