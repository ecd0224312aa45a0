"""Small libraries beside PyTorch's CUDA part: the face of the CUDA runtime, and NVTX marks."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_SUCCESS = 0

# That of torch 2.13 for CUDA: major * 10000 + minor * 100 + patch.
_CUDNN_VERSION = 92000

# Functions of the runtime that have nothing to do here and succeed at it.
_DONE_AT_ONCE = ("cudaProfilerStart", "cudaProfilerStop", "cudaStreamDestroy")

# What cudaGetErrorString says: CUDA's driver_types.h.
_ERROR_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    710: "device-side assert triggered",
    801: "operation not supported",
}


class CudaError(int):
    """An error number of the runtime; only success comes back from it here."""

    success: int = _SUCCESS


def cuda_runtime(core: ModuleType) -> SimpleNamespace:
    """Return what stands for the CUDA runtime: the result of `torch.cuda.cudart()`."""

    def succeed(*arguments: object) -> int:
        return _SUCCESS

    def host_register(address: int, size_bytes: int, flags: int) -> int:
        core.pin(address, size_bytes)
        return _SUCCESS

    def host_unregister(address: int) -> int:
        core.unpin(address)
        return _SUCCESS

    def create_stream(address: int) -> int:
        stream, _, _ = core.stream_from_pool(core.current_device(), 0)
        ctypes.c_uint64.from_address(address).value = core.stream_handle(
            stream, core.current_device()
        )
        return _SUCCESS

    functions: dict[str, Callable[..., Any]] = dict.fromkeys(_DONE_AT_ONCE, succeed)
    return SimpleNamespace(
        cudaError=CudaError,
        cudaGetErrorString=lambda error: _ERROR_TEXTS.get(int(error), "unrecognized error code"),
        cudaHostRegister=host_register,
        cudaHostUnregister=host_unregister,
        cudaStreamCreate=create_stream,
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
    # Recurrent networks take PyTorch's own kernels, not cuDNN's; programs ask whether it is there.
    cudnn: Any = torch.backends.cudnn
    cudnn.is_acceptable = lambda tensor: False
    cudnn.is_available = lambda: True
    cudnn.version = lambda: _CUDNN_VERSION
    # A build for CUDA would compile what it fuses in scripted functions, for a card.
    bindings._jit_override_can_fuse_on_gpu(False)
    bindings._nvtx = cuda.nvtx._nvtx = nvtx_marks()
