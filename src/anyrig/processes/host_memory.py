"""Freed memory that a rank on the CPU keeps, instead of giving it back at the end of each step.

glibc gives the end of its heap back to the system as soon as a few megabytes there are free, and
the next step faults the pages in again, one by one: about a tenth of a small network's step, more
or less by where some small object happens to lie. See M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in
mallopt(3). Other allocators, and other C libraries, do not read these variables.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..devices.environment import DEVICE_VARIABLE

_KEPT_BYTES = 512 * 2**20
# The most that glibc takes on 64 bits. Larger tensors are mapped, and given back, one by one. It
# has to be named: where one of the two is set, glibc no longer adapts the other.
_MAPPED_FROM_BYTES = 32 * 2**20
_VARIABLES = {
    "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(_MAPPED_FROM_BYTES),
}
_TUNABLES = "GLIBC_TUNABLES"  # says the same in one variable


def keep_freed_memory(rank: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a rank on the CPU, or on virtual GPUs, keeps freed memory.

    Nothing if the variables `rank` show it a device, or those of the `user` adjust glibc's
    allocator.
    """
    adjusted = "glibc.malloc" in user.get(_TUNABLES, "") or any(
        name.startswith("MALLOC_") for name in user
    )
    return {} if rank.get(DEVICE_VARIABLE, "cpu") != "cpu" or adjusted else dict(_VARIABLES)
