"""A private name of PyTorch, and whether the installed PyTorch has it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .lookup import has_header, has_name, header_declares
from .versions import major_and_minor


class Needs(Enum):
    """What a build of PyTorch must have for a name to exist in it."""

    NOTHING = ""
    DISTRIBUTED = "torch.distributed"
    GLOO = "gloo"
    NCCL = "NCCL"
    RPC = "torch.distributed.rpc"
    CUDA = "CUDA"
    VIRTUAL_GPUS = "virtual GPUs"  # which set the name, whether or not PyTorch has it


@dataclass(frozen=True)
class PrivateName:
    """A private name of PyTorch.

    Attributes:
        name: the path of the name, through its module and class; for C++, a header below
            `torch/include`, or the name in `header`.
        breaks: what breaks without the name.
        header: the header that declares a C++ name.
        since: the first version of PyTorch with the name, if older tested ones do not have it.
        until: the last version with the name, if newer tested ones do not have it.
        needs: what the build must have.
    """

    name: str
    breaks: str
    header: str = ""
    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None
    needs: Needs = Needs.NOTHING

    @property
    def is_expected(self) -> bool:
        """Whether a build of this version, with these features, should have the name."""
        import torch

        version = major_and_minor(str(torch.__version__))
        if self.since is not None and version < self.since:
            return False
        if self.until is not None and version > self.until:
            return False
        return _is_given(self.needs)

    @property
    def exists(self) -> bool:
        """Whether the installed PyTorch has the name. Imports no module of PyTorch."""
        if self.header:
            return header_declares(self.header, self.name)
        if self.name.endswith((".h", ".hpp")):
            return has_header(self.name)
        return has_name(self.name)


def _is_given(needs: Needs) -> bool:
    import torch
    import torch.distributed as dist

    if needs is Needs.NOTHING:
        return True
    if needs is Needs.CUDA:
        return bool(torch.backends.cuda.is_built())  # type: ignore[no-untyped-call]
    if needs is Needs.VIRTUAL_GPUS:
        return False
    if not dist.is_available():
        return False
    if needs is Needs.GLOO:
        return dist.is_gloo_available()
    if needs is Needs.RPC:
        return hasattr(torch._C, "_rpc_init")  # without importing torch.distributed.rpc
    return needs is Needs.DISTRIBUTED or dist.is_nccl_available()
