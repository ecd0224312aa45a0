"""Which class of process group the backend "nccl" means in this version of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

# PyTorch 2.14 added ProcessGroupNCCL2, which "nccl" means from 2.15 on.
HAS_BOTH = hasattr(dist, "ProcessGroupNCCL2")
# The backend whose class is ProcessGroupNCCL.
LEGACY = "nccl-legacy" if HAS_BOTH else "nccl"


def backend_of(group: Any = None) -> Any:
    """Return the backend of a group, by default of the world, for GPUs."""
    return (group or dist.group.WORLD)._get_backend(torch.device("cuda"))


def is_second(group: Any = None) -> bool:
    """Return whether a group is of class ProcessGroupNCCL2."""
    return type(backend_of(group)).__name__ == "ProcessGroupNCCL2"


def version_of_torch() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
