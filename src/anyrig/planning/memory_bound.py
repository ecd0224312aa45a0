"""An upper bound of the memory that a program takes on a real GPU, from its rehearsal."""

from __future__ import annotations

from typing import Any

# Of what PyTorch's allocator reserves. The largest difference from a real GPU is 5 %: a ResNet in
# mixed precision on an H100, whose convolutions have other workspaces (docs/virtual_inside.md).
_ALLOCATOR_SHARE = 0.05
# Of the CUDA context. With drivers, versions of PyTorch and the number of loaded kernels, it varies
# from 256 to 890 MiB on GPUs that load kernels at their first use (hardware/driver_memory.toml and
# docs/virtual_inside.md).
_CONTEXT_BYTES = 512 * 2**20


def most_bytes(peak: dict[str, Any]) -> int:
    """Return the most memory that a rank takes on a GPU.

    To what was rehearsed, with all that the allocator kept instead of releasing it, this adds the
    largest known errors of such rehearsals.

    Args:
        peak: the attributes of `PeakMemory`.
    """
    outside = (peak["context_bytes"] or 0) + (peak["collective_bytes"] or 0)
    reserved = peak["total_bytes"] - outside
    return int(peak["total_bytes"] + _ALLOCATOR_SHARE * reserved) + _CONTEXT_BYTES


def spare_bytes(facts: dict[str, Any]) -> int | None:
    """Return what the upper bound leaves on the fullest GPU; negative if it exceeds the GPU.

    Args:
        facts: the facts of a rehearsal.

    Returns:
        the bytes; None if the program used no GPU.
    """
    return min(
        (one["capacity_bytes"] - most_bytes(one["peak"]) for one in facts.get("devices", ())),
        default=None,
    )
