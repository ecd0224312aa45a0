"""By how much the GPUs of a rig are too small for a program."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from ...virtual.rig import VirtualRig
from ..more_memory import more_bytes


def with_more_memory(rig: VirtualRig) -> VirtualRig:
    """Return the rig with plain GPUs of many times the memory."""
    return replace(
        rig,
        devices=tuple(
            replace(one, spec=None, memory_bytes=more_bytes(one.memory_bytes))
            for one in rig.devices
        ),
    )


def missing_bytes(before: dict[str, Any], after: dict[str, Any]) -> int | None:
    """Return how much more memory the most overfilled GPU would need.

    Memory that the allocator has cached does not count: with less memory, it would be released. The
    size of the CUDA context is taken from `before`, since plain GPUs have none.

    Args:
        before: the facts on the rig, where the program ran out of memory.
        after: the facts on the rig with more memory.

    Returns:
        the bytes; None if the GPUs have enough in total, so that fragmentation is the cause, or if
        the program did not run far enough on the rig with more memory.
    """
    capacity = {
        (one["rank"], one["index"]): one["capacity_bytes"] - one["peak"]["context_bytes"]
        for one in before["devices"]
    }
    needed: Counter[tuple[int, int]] = Counter()
    for memory in after["memory"]:
        moments = zip(
            memory["tensor_bytes"], memory["workspace_bytes"], memory["context_bytes"], strict=True
        )
        needed[memory["rank"], memory["device"]] = max(map(sum, moments), default=0)
    lacks = [needed[place] - capacity[place] for place in needed.keys() & capacity.keys()]
    most = max(lacks, default=0)
    return most if most > 0 else None
