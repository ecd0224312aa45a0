"""A PyTorch as the compiler and the linker see it: its files, and the options of its build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# The versions of the builds that PyTorch publishes for CPUs and for CUDA. A build without a local
# version is somebody else's, or for macOS.
_PUBLISHED = re.compile(r"[\d.]+\+(cpu|cu\d+)")


@dataclass(frozen=True)
class TorchFiles:
    """The headers and libraries of one build of PyTorch.

    Attributes:
        folder: the folder with ``include`` and ``lib``.
        version: the version, such as ``"2.13.0+cpu"``.
        commit: the commit of PyTorch's sources; empty if unknown.
        has_cxx11_abi: whether it uses libstdc++'s newer ABI.
        has_distributed: whether it has `torch.distributed`.
        has_gloo: whether that has gloo.
    """

    folder: Path
    version: str
    commit: str
    has_cxx11_abi: bool = True
    has_distributed: bool = True
    has_gloo: bool = True

    @classmethod
    def installed(cls) -> TorchFiles:
        """Return the PyTorch that this Python imports."""
        import torch
        import torch.distributed

        has_distributed = torch.distributed.is_available()
        return cls(
            # Not by `torch.utils.cpp_extension`, which searches for CUDA.
            folder=Path(torch.__file__).parent,
            version=str(torch.__version__),
            commit=str(torch.version.git_version or ""),
            has_cxx11_abi=torch.compiled_with_cxx11_abi(),
            has_distributed=has_distributed,
            has_gloo=has_distributed and torch.distributed.is_gloo_available(),
        )

    @classmethod
    def unpacked(cls, folder: Path) -> TorchFiles:
        """Return the PyTorch whose published wheel for Linux was unpacked to `folder`."""
        text = (folder / "version.py").read_text(encoding="utf-8")
        names = dict(re.findall(r"^(\w+) = '(.*)'$", text, re.MULTILINE))
        return cls(folder=folder, version=names["__version__"], commit=names["git_version"])

    @property
    def is_published(self) -> bool:
        """Whether this is a build that PyTorch publishes for Linux, by its version."""
        return _PUBLISHED.fullmatch(self.version) is not None

    @property
    def release(self) -> str:
        """The version; of a published build, without ``+cpu`` or ``+cu130``.

        The published builds of a release have the same headers, so one library of ours serves all.
        """
        return self.version.partition("+")[0] if self.is_published else self.version
