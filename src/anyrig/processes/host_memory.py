"""Processes that compute on the CPU keep freed memory for the next step.

glibc returns the end of its heap to the system once a few megabytes there are free, and the next
step faults the pages in again, which takes about a tenth of a small network's step. See
M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in mallopt(3). Other allocators and C libraries ignore these
settings.
"""

from __future__ import annotations

import ctypes
import os
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


# Their numbers in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory(rank: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for a rank on the CPU or on virtual GPUs.

    Args:
        rank: the rank's own variables, which may name another device.
        user: the user's environment.

    Returns:
        the variables; none if the rank has another device, or the user configures malloc.
    """
    on_cpu = rank.get(DEVICE_VARIABLE, "cpu") == "cpu"
    return dict(_VARIABLES) if on_cpu and not _is_configured(user) else {}


def keep_own_freed_memory() -> None:
    """Make this process keep freed memory from now on, unless the user configures malloc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None and not _is_configured(os.environ):
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)


def _is_configured(user: Mapping[str, str]) -> bool:
    tunables = user.get(_TUNABLES, "")
    return "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in user)
