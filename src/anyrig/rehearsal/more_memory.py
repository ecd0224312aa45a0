"""How a program that ran out of memory is rehearsed with more of it, to see what it needs."""

from __future__ import annotations

from ..virtual.rig import LARGEST_GPU_BYTES

# The factor by which memory is multiplied: enough for a program that has run out of memory early in
# a step.
MEMORY_FACTOR = 16


def more_bytes(memory_bytes: int, factor: int = MEMORY_FACTOR) -> int:
    """Return the memory of a GPU times `factor`, within what a virtual GPU can have."""
    return min(factor * memory_bytes, LARGEST_GPU_BYTES)


def last_step(ended_steps: int) -> int:
    """Return the number of the last step to rehearse, after `ended_steps` that had enough memory.

    Usually that is the step that ran out of memory. After a failure in the first step, it is the
    second one: the optimizer makes its state at the end of the first, and needs it from then on.
    """
    return max(ended_steps + 1, 2)
