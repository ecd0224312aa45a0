"""The functions of `torch._C` behind `torch.cuda` that concern devices."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

# What a build for the CPU passes for: the toolkit of the wheels most people have.
_TOOLKIT = "12.8"

# Architectures that the wheels of CUDA 12.8 are compiled for, and Volta, which older ones are: no
# card of a rig is refused for being too new or too old for a build that does not exist.
_ARCHITECTURES = "sm_70 sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120"

# Cycles a second that `torch.cuda._sleep` counts: the boost clock of an A100.
_CYCLES_PER_SECOND = 1.41e9

# CUDA C++ programming guide, "technical specifications per compute capability": resident threads
# of a multiprocessor, and bytes of shared memory a block can opt in to.
_THREADS_PER_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536}
_SHARED_MEMORY_OPT_IN = {
    (7, 0): 96 * 1024,
    (7, 5): 64 * 1024,
    (8, 0): 163 * 1024,
    (8, 6): 99 * 1024,
    (8, 9): 99 * 1024,
    (9, 0): 227 * 1024,
    (10, 0): 227 * 1024,
    (12, 0): 99 * 1024,
}


class DeviceProperties:
    """What `torch.cuda.get_device_properties` returns."""

    warp_size = 32
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 48 * 1024
    is_integrated = 0
    is_multi_gpu_board = 0

    def __init__(self, facts: Any) -> None:
        self.name: str = facts.name
        self.major: int = facts.capability_major
        self.minor: int = facts.capability_minor
        self.total_memory: int = facts.memory_bytes
        self.multi_processor_count: int = facts.multiprocessors
        # As CUDA prints it: without the "GPU-" of the driver.
        self.uuid: str = facts.uuid.removeprefix("GPU-")
        capability = (self.major, self.minor)
        self.max_threads_per_multi_processor = _THREADS_PER_MULTIPROCESSOR.get(
            capability, 1536 if self.major == 12 else 2048
        )
        self.shared_memory_per_block_optin = _SHARED_MEMORY_OPT_IN.get(capability, 48 * 1024)

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid})"
        )


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""

    def init() -> None:
        core.start()
        atexit.register(core.settle_backward_threads)
        torch.cuda.default_generators = tuple(
            core.default_generator(index) for index in range(core.device_count())
        )

    major, minor = _toolkit().split(".")[:2]
    compiled_version = int(major) * 1000 + int(minor) * 10

    def count_devices() -> int:
        # CUDA's runtime starts the driver to count, and that does not survive a fork.
        # torch.cuda.is_available() asks here, torch.cuda.device_count() need not.
        core.watch_forks()
        count: int = core.device_count()
        return count

    def sleep(cycles: int) -> None:
        core.run_for(cycles / _CYCLES_PER_SECOND)

    return {
        "_cuda_init": init,
        "_cuda_isInBadFork": core.forked_after_use,
        "_cuda_hasPrimaryContext": core.has_context,
        "_cuda_getDeviceCount": count_devices,
        "_cuda_getDevice": core.current_device,
        "_cuda_setDevice": core.set_device,
        "_cuda_exchangeDevice": core.exchange_device,
        # An object of its own: Dynamo refuses two names for one function.
        "_cuda_maybeExchangeDevice": lambda device: core.exchange_device(device),
        "_cuda_synchronize": lambda: core.synchronize(core.current_device()),
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_getArchFlags": lambda: _ARCHITECTURES,
        "_cuda_getCompiledVersion": lambda: compiled_version,
        "_cuda_sleep": sleep,
        "_cuda_busy_wait_for_flag": lambda: None,
        "_cuda_clear_flag": lambda: None,
        "_cuda_getCurrentBlasHandle": lambda: 0,
        "_cuda_getCurrentSolverHandle": lambda: 0,
        "_cuda_clearCublasWorkspaces": core.clear_cublas_workspaces,
        "_cuda_set_sync_debug_mode": core.set_wait_debug,
        "_cuda_get_sync_debug_mode": core.wait_debug,
        "_cuda_ipc_collect": core.collect_sent,
        "_cuda_lock_mutex": lambda: None,
        "_cuda_unlock_mutex": lambda: None,
    }


def patch(core: ModuleType) -> None:
    """Put in place what `torch.cuda` looked for while it was imported, and did not find."""
    cuda: Any = torch.cuda

    @functools.cache  # CUDA gives the same object each time
    def device_properties(index: int) -> DeviceProperties:
        return DeviceProperties(core.devices()[index])

    def count_visible() -> int:
        # Unlike the first use of CUDA, counting does not settle CUDA_VISIBLE_DEVICES.
        return len(core.visible_positions(os.environ.get("CUDA_VISIBLE_DEVICES")))

    bindings: Any = torch._C
    bindings._has_cuda = True
    bindings._CudaDeviceProperties = cuda._CudaDeviceProperties = DeviceProperties
    cuda._get_device_properties = device_properties
    cuda._exchange_device = core.exchange_device
    cuda._maybe_exchange_device = torch._C._cuda_maybeExchangeDevice
    cuda._is_in_bad_fork = core.forked_after_use
    cuda._device_count_nvml = count_visible
    # Code asks for the toolkit's version to see whether this is a CUDA build.
    torch.version.cuda = _toolkit()


def _toolkit() -> str:
    """Return the version of CUDA's toolkit that PyTorch was built with, or passes for."""
    return torch.version.cuda or _TOOLKIT
