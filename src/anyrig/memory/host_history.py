"""The history of CPU memory, for which no caching allocator records a history."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .event import Event


@dataclass
class HostHistory:
    """The allocations and frees of the CPU storages of tensors.

    PyTorch keeps a storage's Python object as long as the storage lives. The callback of a weak
    reference to the object therefore runs when the storage is freed, even if only a graph held it.
    """

    events: list[Event] = field(default_factory=list)
    before: list[Mapping[str, Any]] = field(default_factory=list)
    _alive: dict[int, weakref.ref[torch.UntypedStorage]] = field(default_factory=dict)
    _bytes: dict[int, tuple[int, int]] = field(default_factory=dict)

    def note(self, storage: torch.UntypedStorage, operator: int, seconds: float) -> None:
        """Record a storage, unless it is recorded already or empty."""
        key = storage._cdata
        if key in self._alive or not (count := storage.nbytes()):
            return
        address = storage.data_ptr()

        def forget(_: object) -> None:
            del self._alive[key], self._bytes[key]
            self.events.append(Event("free", address, count, None, None))

        self._alive[key] = weakref.ref(storage, forget)
        self._bytes[key] = (address, count)
        self.events.append(Event("alloc", address, count, operator, seconds))

    def restart(self) -> None:
        """Clear the events, and set `before` to the storages that are still alive.

        `before` has the format of `torch.cuda.memory_snapshot`.
        """
        self.events.clear()
        self.before = [
            {
                "address": address,
                "total_size": count,
                "segment_type": "small",
                "blocks": [{"address": address, "size": count, "state": "active_allocated"}],
            }
            for address, count in self._bytes.values()
        ]
