"""The memory of a virtual GPU that this process holds outside PyTorch's caching allocator."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import VirtualRigError
from .build import load_extension
from .installed import installation


@dataclass(frozen=True)
class OutsideMemory:
    """Memory that `torch.cuda.mem_get_info` counts and `torch.cuda.memory_reserved` does not.

    Attributes:
        context_bytes: the CUDA context; 0 before the first use of the GPU, and on a plain GPU.
        communication_bytes: NCCL's buffers, of all process groups.
        mapped_bytes: memory that the program mapped itself, such as symmetric memory.
    """

    context_bytes: int
    communication_bytes: int
    mapped_bytes: int


def memory_outside_allocator(index: int = 0) -> OutsideMemory:
    """Return the memory of ``cuda:<index>`` that this process holds outside the caching allocator.

    Raises:
        VirtualRigError: this process has no virtual rig.
        torch.AcceleratorError: there is no such GPU.
    """
    if installation() is None:
        raise VirtualRigError("this process has no virtual GPUs; call anyrig.virtual.install first")
    return OutsideMemory(*load_extension().gpu_memory(index))
