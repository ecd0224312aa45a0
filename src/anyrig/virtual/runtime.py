"""Stand-ins for the libraries that `torch.cuda` exposes: the CUDA runtime and NVTX."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_SUCCESS = 0

_NO_NVTX_TOOL = -2  # NVTX_NO_PUSH_POP_TRACKING

# Functions of the runtime that do nothing here and return success.
_NO_OPERATIONS = ("cudaProfilerStart", "cudaProfilerStop", "cudaStreamDestroy")

# The texts of cudaGetErrorString, from CUDA's driver_types.h.
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
    """An error number of the CUDA runtime. The functions here only return `success`."""

    success: int = _SUCCESS


def cuda_runtime(core: ModuleType) -> SimpleNamespace:
    """Return a stand-in for the CUDA runtime, the result of `torch.cuda.cudart()`."""

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

    def error_text(error: CudaError) -> str:
        if not isinstance(error, CudaError):  # as pybind11 does
            raise TypeError(
                "cudaGetErrorString(): incompatible function arguments. The following argument "
                f"types are supported:\n    1. (arg0: cudaError) -> str\n\nInvoked with: {error!r}"
            )
        return _ERROR_TEXTS.get(int(error), "unrecognized error code")

    functions: dict[str, Callable[..., Any]] = dict.fromkeys(_NO_OPERATIONS, succeed)
    return SimpleNamespace(
        cudaError=CudaError,
        cudaGetErrorString=error_text,
        cudaHostRegister=host_register,
        cudaHostUnregister=host_unregister,
        cudaStreamCreate=create_stream,
        cudaMemGetInfo=core.memory_info_of_program,
        **functions,
    )


def nvtx_marks() -> SimpleNamespace:
    """Return a stand-in for NVTX while no tool such as Nsight is attached: nothing is recorded."""
    handles = itertools.count(1)

    def nest(*arguments: object) -> int:
        return _NO_NVTX_TOOL

    def start(*arguments: object) -> int:
        return 0

    def start_on_device(*arguments: object) -> int:
        return next(handles)

    def end(*arguments: object) -> None:
        pass

    return SimpleNamespace(
        rangePushA=nest,
        rangePop=nest,
        rangeStartA=start,
        rangeEnd=end,
        markA=end,
        deviceRangeStart=start_on_device,
        deviceRangeEnd=end,
    )


def patch(core: ModuleType) -> None:
    """Install the runtime and NVTX in `torch.cuda`, and report cuDNN as available."""
    bindings: Any = torch._C
    cuda: Any = torch.cuda
    bindings._cudart = cuda._cudart = cuda_runtime(core)
    # Programs check that cuDNN is available, but recurrent networks must use PyTorch's kernels.
    cudnn: Any = torch.backends.cudnn
    cudnn.is_acceptable = lambda tensor: False
    cudnn.is_available = lambda: True
    # A CUDA build would compile fused kernels of scripted functions for a real GPU.
    bindings._jit_override_can_fuse_on_gpu(False)
    bindings._nvtx = cuda.nvtx._nvtx = nvtx_marks()
