"""The choice of the CUDA build that the installed PyTorch is, or passes for, on a rig.

A CUDA build answers for itself. A CPU build passes for a published CUDA build of its version: the
one on PyPI or, if that has no kernels for a GPU of the rig, the newest that has kernels for all.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from ..errors import VirtualRigError
from ..private_names import NEWEST, major_and_minor
from .rig import VirtualDevice, VirtualRig
from .torch_build import TorchBuild, own_build, published_builds


def choose_build(rig: VirtualRig, *, without_kernels: bool) -> tuple[TorchBuild, str | None]:
    """Return the build, and why a CPU build does not pass for that of its version on PyPI.

    Raises:
        VirtualRigError: no such build has kernels for all GPUs of `rig`, and
            `without_kernels` is not set.
    """
    import torch

    own, version = own_build(), str(torch.__version__)
    if own is None:
        return choose_published(version, rig, without_kernels=without_kernels)
    gpus = own.missing(rig)
    if gpus and not without_kernels:
        raise _refusal(
            f"PyTorch {version} has no kernels for {_named(gpus)}: it is compiled for "
            f"{' '.join(own.architectures)}",
            rig,
        )
    return own, None


def choose_published(
    version: str, rig: VirtualRig, *, without_kernels: bool
) -> tuple[TorchBuild, str | None]:
    """Do the same as `choose_build` for a CPU build with this version.

    A version that is newer than the table passes for the newest one in the table.

    Raises:
        VirtualRigError: as for `choose_build`.
    """
    minor = min(major_and_minor(version), NEWEST)
    builds = [build for build in published_builds() if build.torch == minor]
    default = next(build for build in builds if build.on_pypi)
    gpus = default.missing(rig)
    if not gpus:
        if minor == major_and_minor(version):
            return default, None
        return default, f"PyTorch {version} passes for {default}, the newest known"
    complete = [build for build in builds if not build.missing(rig)]
    if complete:
        return complete[-1], (
            f"PyTorch {version} passes for {complete[-1]}, because the build on PyPI, for CUDA "
            f"{default.cuda}, has no kernels for {_named(gpus)}"
        )
    if without_kernels:
        return default, None
    lists: dict[tuple[str, ...], list[str]] = {}
    for build in builds:
        lists.setdefault(build.architectures, []).append(build.cuda)
    compiled = "; ".join(
        f"for CUDA {', '.join(versions)}: {' '.join(architectures)}"
        for architectures, versions in lists.items()
    )
    raise _refusal(
        f"no published build of PyTorch {minor[0]}.{minor[1]} has kernels for all GPUs of the rig "
        f"{rig}, and the one on PyPI has none for {_named(gpus)}; they are compiled {compiled}",
        rig,
    )


def check_build(rig: VirtualRig, *, without_kernels: bool) -> None:
    """Report or refuse the build on behalf of the processes that this process will start.

    Raises:
        VirtualRigError: as for `choose_build`.
    """
    report(choose_build(rig, without_kernels=without_kernels)[1])


@functools.cache  # so that a process says it once
def report(reason: str | None) -> None:
    """Write the reason for a choice to standard error."""
    if reason is not None:
        sys.stderr.write(f"anyrig: {reason}.\n")


def _refusal(what: str, rig: VirtualRig) -> VirtualRigError:
    complete = [build for build in published_builds() if not build.missing(rig)]
    instead = f"install {complete[-1]}, which has them" if complete else "choose another rig"
    return VirtualRigError(
        f"{what}. On the real GPU, the first kernel would fail; {instead}, or go on as if there "
        "were kernels, with --without-kernels (in Python: without_kernels=True)"
    )


def _named(gpus: Sequence[VirtualDevice]) -> str:
    """Return the GPUs with their compute capabilities: ``Tesla T4 (compute capability 7.5)``."""
    texts = [
        f"{gpu.name} (compute capability {gpu.capability[0]}.{gpu.capability[1]})" for gpu in gpus
    ]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))
