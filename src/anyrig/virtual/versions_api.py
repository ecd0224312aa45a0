"""What PyTorch says of its build: its kernels, and the versions of CUDA, NCCL and cuDNN.

A CUDA build keeps its own functions; a CPU build gets those of the build that it passes for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .torch_build import TorchBuild, own_build


def bindings(build: TorchBuild) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`; none for a CUDA build."""
    if own_build() is not None:
        return {}
    flags = " ".join(build.architectures)
    functions: dict[str, Callable[..., Any]] = {
        "_cuda_getArchFlags": lambda: flags,
        "_cuda_getCompiledVersion": lambda: build.cuda_number,
        "_nccl_version_suffix": lambda: b"",
    }
    if build.nccl is not None:
        nccl = build.nccl[0] << 32 | build.nccl[1] << 16 | build.nccl[2]
        functions["_nccl_version"] = lambda: nccl
    return functions


def patch(core: ModuleType, build: TorchBuild, *, without_kernels: bool) -> None:
    """Set the versions that are not functions of `torch._C`."""
    core.set_build_versions(build.cuda_number, build.cudnn or 0)
    # Programs check this version to detect a CUDA build.
    torch.version.cuda = build.cuda
    cudnn: Any = torch.backends.cudnn
    cudnn.version = lambda: build.cudnn
    if without_kernels:
        # When CUDA starts, these two warn of GPUs for which this build has no kernels.
        cuda: Any = torch.cuda
        checks = (cuda._check_capability, cuda._check_cubins)
        cuda._queued_calls[:] = [call for call in cuda._queued_calls if call[0] not in checks]
