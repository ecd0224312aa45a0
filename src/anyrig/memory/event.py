"""One entry of an allocator's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["alloc", "free", "reuse", "segment_alloc", "segment_free", "refuse"]


@dataclass(frozen=True)
class Event:
    """One entry of an allocator's history.

    Attributes:
        action: ``"free"`` ends an allocation; from ``"reuse"`` on its block may be given again,
            later than that if another stream still used it; ``"refuse"`` is a request for which
            there was no memory.
        address: of a refused request, the free bytes of the device instead.
        bytes: of a request as asked for; of a segment its size.
        operator: the number of the operator that was running; None if unknown.
        seconds: since the epoch; None if unknown.
    """

    action: Action
    address: int
    bytes: int
    operator: int | None
    seconds: float | None
