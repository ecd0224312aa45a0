"""What the upper bound of memory leaves on a GPU."""

from __future__ import annotations

from typing import Any

from ..rehearsal.memory_bound import most_bytes


def spare_bytes(facts: dict[str, Any]) -> int | None:
    """Return what the upper bound leaves on the fullest GPU; negative if it exceeds the GPU.

    Args:
        facts: the facts of a rehearsal.

    Returns:
        the bytes; None if the program used no GPU.
    """
    return min(
        (one["capacity_bytes"] - _most_bytes(one["peak"]) for one in facts.get("devices", ())),
        default=None,
    )


def _most_bytes(peak: dict[str, Any]) -> int:
    outside = (peak["context_bytes"] or 0) + (peak["collective_bytes"] or 0)
    return most_bytes(peak["total_bytes"], outside)
