"""The device functions of `torch._C` that `torch.cuda` calls."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .device_properties import DeviceProperties

# The clock rate of `torch.cuda._sleep`: the boost clock of an A100.
_CYCLES_PER_SECOND = 1.41e9


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`."""

    def init() -> None:
        core.start()
        atexit.register(core.settle_backward_threads)
        torch.cuda.default_generators = tuple(
            core.default_generator(index) for index in range(core.device_count())
        )

    def count_devices() -> int:
        # Counting initializes CUDA's driver, which does not survive a fork. This function serves
        # torch.cuda.is_available(); torch.cuda.device_count() may use NVML instead.
        core.watch_forks()
        count: int = core.device_count()
        return count

    def set_device(index: int) -> None:
        torch.cuda._lazy_init()  # type: ignore[no-untyped-call]  # as in torch/csrc/cuda/Module.cpp
        core.set_device(index)

    def sleep(cycles: int) -> None:
        core.run_for(cycles / _CYCLES_PER_SECOND)

    return {
        "_cuda_init": init,
        "_cuda_isInBadFork": core.forked_after_use,
        "_cuda_hasPrimaryContext": core.has_context,
        "_cuda_getDeviceCount": count_devices,
        "_cuda_getDevice": core.current_device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": core.exchange_device,
        # A separate function object: Dynamo rejects two names for one function.
        "_cuda_maybeExchangeDevice": lambda device: core.exchange_device(device),
        "_cuda_synchronize": lambda: core.synchronize(core.current_device()),
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
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
    """Set the attributes that `torch.cuda` looked up, without success, when it was imported."""
    cuda: Any = torch.cuda

    @functools.cache  # CUDA returns the same object each time
    def device_properties(index: int) -> DeviceProperties:
        return DeviceProperties(core.devices()[index])

    def count_visible() -> int:
        # Counting does not fix CUDA_VISIBLE_DEVICES; the first use of CUDA does.
        return len(core.visible_positions(os.environ.get("CUDA_VISIBLE_DEVICES")))

    bindings: Any = torch._C
    bindings._has_cuda = bindings._has_cusparselt = True
    bindings._has_gds = False  # GPUDirect Storage
    bindings._CudaDeviceProperties = cuda._CudaDeviceProperties = DeviceProperties
    cuda._get_device_properties = device_properties
    cuda._exchange_device = core.exchange_device
    cuda._maybe_exchange_device = torch._C._cuda_maybeExchangeDevice
    cuda._is_in_bad_fork = core.forked_after_use
    cuda._device_count_nvml = count_visible
