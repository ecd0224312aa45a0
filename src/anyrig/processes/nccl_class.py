"""Which process group the backend "nccl" means in this version of PyTorch.

PyTorch 2.14 added a second one, ProcessGroupNCCL2, and TORCH_DIST_USE_NCCL2 chooses:

=======  ===============================  ===============================
PyTorch  "nccl" is                        with TORCH_DIST_USE_NCCL2
=======  ===============================  ===============================
2.13     ProcessGroupNCCL                 ProcessGroupNCCL
2.14     ProcessGroupNCCL                 ProcessGroupNCCL2 if it is "1"
2.15     ProcessGroupNCCL2                ProcessGroupNCCL if it is "0"
=======  ===============================  ===============================

A ProcessGroupNCCL takes the device of its first tensor. Without `device_id`, a ProcessGroupNCCL2 of
PyTorch 2.15 takes the device of LOCAL_RANK, or else of the global rank, modulo the number of
devices; a tensor on another device is an error.
"""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "TORCH_DIST_USE_NCCL2"
FIRST, SECOND = "ProcessGroupNCCL", "ProcessGroupNCCL2"


def class_of_nccl(version: str, environment: Mapping[str, str]) -> str:
    """Return the name of the class that "nccl" means in this version of PyTorch."""
    release = _release(version)
    value = environment.get(VARIABLE)
    if release < (2, 14):
        return FIRST
    if release < (2, 15):
        return SECOND if value == "1" else FIRST
    return FIRST if value == "0" else SECOND


def has_effect(version: str, value: str) -> bool:
    """Return whether PyTorch of this version reads `value` of the variable as other than unset."""
    return class_of_nccl(version, {VARIABLE: value}) != class_of_nccl(version, {})


def takes_device_of_local_rank(version: str, environment: Mapping[str, str]) -> bool:
    """Return whether a group of "nccl" without `device_id` belongs to the device of LOCAL_RANK."""
    return _release(version) >= (2, 15) and class_of_nccl(version, environment) == SECOND


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
