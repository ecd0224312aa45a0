"""The functions of `torch.cuda` that read NVML: memory in use, and the sensors of an idle GPU.

PyTorch reads NVML through pynvml, which must have been installed when torch was imported. The
functions here work without pynvml. The library in `driver` reports the same figures.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch

from . import idle


def patch(core: ModuleType) -> None:
    """Replace the functions that read NVML."""
    cuda: Any = torch.cuda

    def index_of(device: Any) -> int:
        index: int = cuda._utils._get_device_index(device, optional=True)
        if not 0 <= index < core.device_count():
            # The text of torch.cuda._get_nvml_device_index.
            raise RuntimeError(
                f"device {index} is not visible "
                f"(CUDA_VISIBLE_DEVICES={list(range(core.device_count()))})"
            )
        return index

    def device_memory_used(device: Any = None) -> int:
        free_bytes, total_bytes = core.memory_info(index_of(device))
        return int(total_bytes - free_bytes)

    def constant(value: int) -> Any:
        def read(device: Any = None) -> int:
            index_of(device)
            return value

        return read

    def list_gpu_processes(device: Any = None) -> str:
        index = index_of(device)
        holders = [
            f"process {os.getpid() if pid is None else pid:>10d} uses "
            f"{used_bytes / 2**20:>12.3f} MB GPU memory"
            for pid, used_bytes in core.gpu_processes(index)
            if used_bytes > 0
        ]
        return "\n".join([f"GPU:{index}", *(holders or ["no processes are running"])])

    cuda.device_memory_used = device_memory_used
    cuda.memory_usage = constant(idle.PERCENT)
    cuda.utilization = constant(idle.PERCENT)
    cuda.temperature = constant(idle.CELSIUS)
    cuda.power_draw = constant(idle.MILLIWATTS)
    cuda.clock_rate = constant(idle.CLOCK_MHZ)
    cuda.list_gpu_processes = cuda.memory.list_gpu_processes = list_gpu_processes
