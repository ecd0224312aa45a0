"""An upper bound of the memory that a program takes on a real GPU, from its rehearsal."""

from __future__ import annotations

# Of what PyTorch's allocator reserves. The largest difference from a real GPU is 5 %: a ResNet in
# mixed precision on an H100, whose convolutions have other workspaces (docs/virtual_inside.md).
_ALLOCATOR_SHARE = 0.05
# Of the CUDA context. With drivers, versions of PyTorch and the number of loaded kernels, it varies
# from 256 to 890 MiB on GPUs that load kernels at their first use (hardware/driver_memory.toml and
# docs/virtual_inside.md).
_DRIVER_BYTES = 512 * 2**20


def most_bytes(total_bytes: int, outside_bytes: int) -> int:
    """Return the most memory that a rank takes on a GPU.

    This is the rehearsed memory, with all that the allocator kept instead of releasing it, plus the
    largest known errors of such rehearsals: other fragmentation and optional workspaces, and the
    driver.

    Args:
        total_bytes: all that a rank held.
        outside_bytes: the part of it that PyTorch's allocator did not hold.
    """
    reserved = total_bytes - outside_bytes
    return int(total_bytes + _ALLOCATOR_SHARE * reserved) + _DRIVER_BYTES
