"""What CUDA builds of PyTorch have: kernels for some GPUs, and versions of CUDA, NCCL and cuDNN."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ..private_names import major_and_minor
from .rig import VirtualDevice, VirtualRig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


@dataclass(frozen=True)
class TorchBuild:
    """A build of PyTorch for one version of CUDA.

    Attributes:
        torch: PyTorch's version, ``(2, 13)``.
        cuda: the version of the CUDA toolkit, such as ``"13.0"``.
        architectures: the GPUs for which it has kernels, as in ``torch.cuda.get_arch_list()``:
            machine code such as ``"sm_90"``, and PTX such as ``"compute_90"``.
        nccl: the version of NCCL; None if unknown.
        cudnn: the version of cuDNN, major * 10000 + minor * 100 + patch; None if unknown.
        on_pypi: whether pip installs this build by default.
    """

    torch: tuple[int, int]
    cuda: str
    architectures: tuple[str, ...]
    nccl: tuple[int, int, int] | None = None
    cudnn: int | None = None
    on_pypi: bool = False

    @property
    def cuda_number(self) -> int:
        """The version of CUDA as in CUDART_VERSION: 13020 for 13.2."""
        major, minor = _numbers(self.cuda)
        return major * 1000 + minor * 10

    def has_kernels_for(self, capability: tuple[int, int]) -> bool:
        """Return whether some kernels of this build run on GPUs of this compute capability.

        A build without a list of architectures is taken to have all kernels.
        """
        return not self.architectures or any(
            _runs_on(architecture, capability) for architecture in self.architectures
        )

    def missing(self, rig: VirtualRig) -> list[VirtualDevice]:
        """Return one device for each model of GPU in `rig` for which there are no kernels."""
        models = {device.name: device for device in rig.devices}
        return [gpu for gpu in models.values() if not self.has_kernels_for(gpu.capability)]

    def __str__(self) -> str:
        return f"PyTorch {self.torch[0]}.{self.torch[1]} for CUDA {self.cuda}"


@functools.cache
def published_builds() -> tuple[TorchBuild, ...]:
    """Return the builds in `torch_builds.toml`, ordered by PyTorch's version, then by CUDA's."""
    text = resources.files(__package__).joinpath("torch_builds.toml").read_text(encoding="utf-8")
    builds = [_build(key, table) for key, table in tomllib.loads(text).items()]
    return tuple(sorted(builds, key=lambda build: (build.torch, _numbers(build.cuda))))


@functools.cache  # read before virtual GPUs replace the functions
def own_build() -> TorchBuild | None:
    """Return what the installed PyTorch says of itself, or None if it is not a CUDA build."""
    import torch

    if torch.version.cuda is None:
        return None
    bindings: Any = torch._C
    # torch.cuda.get_arch_list() returns nothing without a GPU until PyTorch 2.11.
    flags = bindings._cuda_getArchFlags() or ""
    nccl: Any = torch.cuda.nccl
    return TorchBuild(
        torch=major_and_minor(str(torch.__version__)),
        cuda=torch.version.cuda,
        architectures=tuple(flags.split()),
        nccl=nccl.version()[:3] if torch.distributed.is_nccl_available() else None,
        # torch.backends.cudnn.version() starts CUDA if NVML has GPUs: those of the rig, here.
        cudnn=bindings._cudnn.getVersionInt() if bindings._has_cudnn else None,
    )


def _runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Return whether code for `architecture` runs on a GPU, by CUDA's rules of compatibility.

    Machine code runs on the same major capability from its minor one on, and PTX on all later
    capabilities. Code of a suffix "a" runs on the very capability only, of "f" on its family.
    """
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        return False
    compiled = (int(match[2]), int(match[3]))
    if match[4] == "a":
        return capability == compiled
    if match[1] == "compute" and not match[4]:
        return capability >= compiled
    return capability[0] == compiled[0] and capability[1] >= compiled[1]


def _build(key: str, table: dict[str, Any]) -> TorchBuild:
    nccl, cudnn = table.get("nccl"), table.get("cudnn")
    return TorchBuild(
        torch=major_and_minor(key),
        cuda=table["cuda"],
        architectures=tuple(table["architectures"].split()),
        nccl=None if nccl is None else _three_numbers(nccl),
        cudnn=None if cudnn is None else _cudnn_number(_three_numbers(cudnn)),
        on_pypi=table.get("on_pypi", False),
    )


def _cudnn_number(version: tuple[int, int, int]) -> int:
    major, minor, patch = version
    return major * 10000 + minor * 100 + patch


def _three_numbers(text: str) -> tuple[int, int, int]:
    major, minor, patch = _numbers(text)
    return major, minor, patch


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
