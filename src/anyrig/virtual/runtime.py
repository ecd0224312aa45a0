"""Small libraries beside PyTorch's CUDA part: the face of the CUDA runtime, and NVTX marks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_SUCCESS = 0

# Functions of the runtime that have nothing to do here and succeed at it.
_DONE_AT_ONCE = (
    "cudaProfilerStart",
    "cudaProfilerStop",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaStreamCreate",
    "cudaStreamDestroy",
)


class CudaError(int):
    """The runtime's error numbers; here there is only success."""

    success = _SUCCESS


def cuda_runtime(core: ModuleType) -> SimpleNamespace:
    """Return what stands for the CUDA runtime: the result of `torch.cuda.cudart()`."""

    def succeed(*arguments: object) -> int:
        return _SUCCESS

    functions: dict[str, Callable[..., Any]] = dict.fromkeys(_DONE_AT_ONCE, succeed)
    return SimpleNamespace(
        cudaError=CudaError,
        cudaGetErrorString=lambda error: "no error" if error == _SUCCESS else "unknown error",
        cudaMemGetInfo=core.memory_info,
        **functions,
    )


def nvtx_marks() -> SimpleNamespace:
    """Return what stands for NVTX where no profiler listens: ranges nest, marks go nowhere."""
    depth = 0
    handles = itertools.count(1)

    def push(message: str) -> int:
        nonlocal depth
        depth += 1
        return depth - 1

    def pop() -> int:
        nonlocal depth
        depth -= 1
        return depth

    def start(*arguments: object) -> int:
        return next(handles)

    def end(*arguments: object) -> None:
        pass

    return SimpleNamespace(
        rangePushA=push,
        rangePop=pop,
        rangeStartA=start,
        rangeEnd=end,
        markA=end,
        deviceRangeStart=start,
        deviceRangeEnd=end,
    )


def patch(core: ModuleType) -> None:
    """Put the runtime and NVTX where `torch.cuda` looks for them."""
    bindings: Any = torch._C
    cuda: Any = torch.cuda
    bindings._cudart = cuda._cudart = cuda_runtime(core)
    # cuDNN is not there, and asking for it warns; recurrent networks take PyTorch's own kernels.
    cudnn: Any = torch.backends.cudnn
    cudnn.is_acceptable = lambda tensor: False
    bindings._nvtx = cuda.nvtx._nvtx = nvtx_marks()
