"""One entry of an allocator's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["alloc", "free", "reuse", "segment_alloc", "segment_free", "refuse"]


@dataclass(frozen=True)
class Event:
    """One entry of an allocator's history.

    Attributes:
        action: ``"free"`` ends an allocation. From ``"reuse"`` on, the allocator may hand out the
            block again; this event comes later if another stream still uses the block.
            ``"refuse"`` is a request that failed because memory was full.
        address: the block's address; for ``"refuse"``, the device's free bytes instead.
        bytes: the requested bytes, or the size of a segment.
        operator: the number of the operator that was running; None if unknown.
        seconds: since the epoch; None if unknown.
    """

    action: Action
    address: int
    bytes: int
    operator: int | None
    seconds: float | None
