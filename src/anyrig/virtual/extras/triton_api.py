"""Triton on virtual GPUs, which cannot run compiled kernels.

CUDA builds of PyTorch install Triton. PyTorch considers Triton usable if it can be imported and a
GPU is present, and then asks Triton for its driver, even to compile for the CPU. So anyrig makes
PyTorch consider Triton unusable. A program's own Triton kernels run on the CPU in Triton's
interpreter. Triton's CUDA driver keeps working for other queries: the device, its properties and
benchmarks.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.utils._triton

from ..import_watch import ImportWatch

DRIVER = "triton.backends.nvidia.driver"
TESTING = "triton.testing"


def patch(_core: ModuleType) -> None:
    """Keep PyTorch from asking Triton for a driver, and Triton from compiling kernels."""
    # A private function, which all of PyTorch calls.
    torch.utils._triton.has_triton = _has_triton
    # Triton reads the variable when a kernel is defined, here and in child processes.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    _when_imported(DRIVER, _replace_driver)
    _when_imported(TESTING, _measure_few_times)


@functools.cache  # callers of PyTorch's function clear its cache
def _has_triton(**_options: bool) -> bool:  # PyTorch 2.15 passes options
    return False


def _when_imported(name: str, adapt: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        adapt(sys.modules[name])
        return

    def load_and_adapt(load: Callable[[], None]) -> None:
        load()
        adapt(sys.modules[name])

    sys.meta_path.insert(0, ImportWatch(name, load_and_adapt))


class _VirtualCudaUtils:
    """A replacement for Triton's `CudaUtils`, which calls libcuda."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return the limits of a GPU under Triton's names. Clock rates are unknown and missing."""
        properties: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": properties.warp_size,
        }

    def load_binary(self, *_arguments: object) -> None:
        raise RuntimeError(
            "virtual GPUs run Triton kernels in Triton's interpreter and cannot load compiled "
            "kernels; leave TRITON_INTERPRET at 1"
        )


def _replace_driver(driver: Any) -> None:
    driver.CudaUtils = _VirtualCudaUtils
    driver.CudaDriver.get_benchmarker = _get_benchmarker


def _get_benchmarker(_driver: object) -> Callable[..., Sequence[float]]:
    return _run_once


def _run_once(
    kernel: Callable[[], object], quantiles: Sequence[float] = (0.5, 0.2, 0.8)
) -> list[float]:
    """Return the same times for all configurations, so that autotuning picks the first that runs.

    The interpreter's speed says nothing about a GPU's. If a `static_assert` fails, return infinity:
    the configuration would not compile for a GPU either, and Triton skips it.
    """
    errors: Any = importlib.import_module("triton.runtime.errors")
    try:
        kernel()
    except errors.InterpreterError as error:
        if not isinstance(error.__cause__, AssertionError):
            raise
        return [float("inf")] * len(quantiles)
    return [0.0] * len(quantiles)


def _measure_few_times(testing: Any) -> None:
    """Shorten Triton's benchmarks: the virtual clock gives the same time on every repetition.

    Triton would measure for 125 ms by default.
    """
    measure = testing.do_bench

    @functools.wraps(measure)
    def do_bench(
        fn: Callable[[], object], warmup: float = 25, rep: float = 100, **options: Any
    ) -> Any:
        return measure(fn, warmup=0, rep=0, **options)

    @functools.wraps(testing.do_bench_cudagraph)
    def do_bench_cudagraph(fn: Callable[[], object], rep: float = 20, **options: Any) -> Any:
        return measure(fn, warmup=0, rep=0, **options)

    testing.do_bench = do_bench
    testing.do_bench_cudagraph = do_bench_cudagraph
