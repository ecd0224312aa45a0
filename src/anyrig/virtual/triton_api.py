"""Triton, where it is installed: its kernels would be compiled for a card.

Builds of PyTorch for CUDA bring it along. PyTorch takes it for usable where it can be imported and
a card is there, and asks it for the driver, even to compile for the CPU. A program's own kernels
run in Triton's interpreter instead, on the CPU. Triton's driver for CUDA answers what programs ask
of it beside that: the device, its facts, and how long something takes.
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

from .import_watch import ImportWatch

DRIVER = "triton.backends.nvidia.driver"
TESTING = "triton.testing"


def patch() -> None:
    """Keep PyTorch from asking Triton for a driver, and Triton from compiling kernels."""
    # Private, and the one function that all of PyTorch asks.
    torch.utils._triton.has_triton = _has_triton
    # Triton looks when a kernel is defined, here and in the processes that this one starts.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    _when_imported(DRIVER, _drive_virtual_cards)
    _when_imported(TESTING, _measure_few_times)


@functools.cache  # as PyTorch's own, whose callers clear it
def _has_triton(**_options: bool) -> bool:  # which 2.15 has
    return False


def _when_imported(name: str, adapt: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        adapt(sys.modules[name])
        return

    def load_and_adapt(load: Callable[[], None]) -> None:
        load()
        adapt(sys.modules[name])

    sys.meta_path.insert(0, ImportWatch(name, load_and_adapt))


class _CardUtilities:
    """What Triton asks libcuda for."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return a card's limits by Triton's names; clocks are not among the known facts."""
        card: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": card.shared_memory_per_block_optin,
            "max_num_regs": card.regs_per_multiprocessor,
            "multiprocessor_count": card.multi_processor_count,
            "warpSize": card.warp_size,
        }

    def load_binary(self, *_arguments: object) -> None:
        raise RuntimeError(
            "virtual GPUs run Triton's kernels in its interpreter and load no compiled ones; "
            "leave TRITON_INTERPRET at 1"
        )


def _drive_virtual_cards(driver: Any) -> None:
    driver.CudaUtils = _CardUtilities
    driver.CudaDriver.get_benchmarker = _get_benchmarker


def _get_benchmarker(_driver: object) -> Callable[..., Sequence[float]]:
    return _run_once


def _run_once(
    kernel: Callable[[], object], quantiles: Sequence[float] = (0.5, 0.2, 0.8)
) -> list[float]:
    """Say that all configurations of a kernel are as fast, so that the first that runs is chosen.

    What the interpreter takes says nothing about a card. A `static_assert` that fails there would
    have kept a card from compiling, and Triton passes such a configuration by.
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
    """Measure by the virtual clock, which has the same answer each time; Triton asks for 125 ms."""
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
