"""What the cost model says about the rig's GPUs, for the formulas of these tests.

These tests check the timelines. ../test_cost_model.py checks the cost model itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from anyrig.hardware import coefficients_of, spec_of_key, values_of
from anyrig.virtual import clock
from anyrig.virtual.gpu_facts import gpu_facts_of
from anyrig.virtual.rig import NETWORK_BYTES_PER_SECOND

core = sys.modules["anyrig_virtual_extension"]

SPEC = spec_of_key("A100-80GB")
GPU = gpu_facts_of(core, SPEC, NETWORK_BYTES_PER_SECOND)
VALUES = {name: values[0] for name, values in values_of(coefficients_of(SPEC)).items()}

LAUNCH_SECONDS = VALUES["host.launch_seconds"] + VALUES["host.operator_seconds"]
COPY_LAUNCH_SECONDS = VALUES["host.launch_seconds"]
BACKWARD_LAUNCH_SECONDS = LAUNCH_SECONDS + VALUES["host.backward_seconds"]
COPY_START_SECONDS = VALUES["copy.start_seconds"]

assert SPEC.link_bytes_per_second is not None
PCIE = VALUES["copy.pcie_fraction"] * SPEC.pcie_bytes_per_second
PAGEABLE = VALUES["copy.pageable_fraction"] * SPEC.pcie_bytes_per_second
NVLINK = VALUES["copy.link_fraction"] * SPEC.link_bytes_per_second
NETWORK = VALUES["copy.network_fraction"] * NETWORK_BYTES_PER_SECOND
# A copy on a GPU reads and writes each byte.
MEMORY_COPY = SPEC.memory_bytes_per_second / 2 * VALUES["memory.fraction"]
T4_PCIE = (
    values_of(coefficients_of(spec_of_key("T4")))["copy.pcie_fraction"][0]
    * spec_of_key("T4").pcie_bytes_per_second
)

# In the order of `Family`, `Precision` and `Access` in csrc/time/work.h.
FAMILIES = ("memory", "product", "convolution", "attention")
PRECISIONS = ("float64", "float32", "tfloat32", "bfloat16", "float16", "float8", "int8")
ACCESSES = (
    "pointwise", "reduction", "normalization", "normalization_backward", "batch_norm",
    "batch_norm_backward", "softmax", "softmax_backward", "gather", "scatter", "sort", "scan",
    "strided", "list", "window", "window_backward", "random", "factorization",
    "conversion",
)  # fmt: skip
BYTES = {"float64": 8, "float32": 4, "tfloat32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def gpu_seconds(family: str, **fields: float) -> float:
    """Return the seconds that the cost model gives for a record of work, without the host's."""
    columns = {"family": FAMILIES.index(family), **fields}
    works = core.Works({name: [float(value)] for name, value in columns.items()})
    return float(core.predict_seconds(GPU, works)[0])


def product_gpu_seconds(size: int, dtype: str = "bfloat16", result_bytes: int = 0) -> float:
    """Return the seconds of a square matrix product without the launch."""
    bytes_each = size**2 * BYTES[dtype]
    written = size**2 * result_bytes if result_bytes else bytes_each
    return gpu_seconds(
        "product",
        precision=PRECISIONS.index(dtype),
        element_bytes=BYTES[dtype],
        m=size,
        n=size,
        k=size,
        flops=2 * size**3,
        bytes_read=2 * bytes_each,
        bytes_written=written,
        footprint_bytes=2 * bytes_each + written,
    )


def product_seconds(size: int, dtype: str = "bfloat16") -> float:
    """Return the seconds of a square matrix product, including the launch."""
    return LAUNCH_SECONDS + product_gpu_seconds(size, dtype)


def memory_gpu_seconds(
    read: int, written: int, access: str = "pointwise", footprint: int | None = None
) -> float:
    """Return the seconds of one kernel bound by memory, without the launch."""
    return gpu_seconds(
        "memory",
        bytes_read=read,
        bytes_written=written,
        footprint_bytes=read + written if footprint is None else footprint,
        access=ACCESSES.index(access),
    )


def seconds(work: Callable[[], object]) -> float:
    """Return the virtual seconds of `work` on an idle rig, until the rig is idle again."""
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    before = clock().done_seconds
    work()
    return clock().done_seconds - before
