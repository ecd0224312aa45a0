"""Environment variables that make a rank on the CPU keep freed memory for the next step.

glibc returns the end of its heap to the system once a few megabytes there are free, and the next
step faults the pages in again, which takes about a tenth of a small network's step. See
M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in mallopt(3). Other allocators and C libraries ignore these
variables.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..devices.environment import DEVICE_VARIABLE

_KEPT_BYTES = 512 * 2**20
# The maximum of glibc on 64 bits; larger tensors are mapped and unmapped individually. Setting
# either variable stops glibc from adapting both, so this variable must be set too.
_MAPPED_FROM_BYTES = 32 * 2**20
_VARIABLES = {
    "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(_MAPPED_FROM_BYTES),
}
_TUNABLES = "GLIBC_TUNABLES"  # the newer variable for the same settings


def keep_freed_memory(rank: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a rank on the CPU or on virtual GPUs.

    Args:
        rank: the rank's own variables, which may name another device.
        user: the user's environment.

    Returns:
        the variables; none if the rank has another device, or the user configures malloc.
    """
    adjusted = "glibc.malloc" in user.get(_TUNABLES, "") or any(
        name.startswith("MALLOC_") for name in user
    )
    return {} if rank.get(DEVICE_VARIABLE, "cpu") != "cpu" or adjusted else dict(_VARIABLES)
