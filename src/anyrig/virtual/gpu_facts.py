"""The facts that the virtual clock gets for a GPU: its data sheet, and its coefficients."""

from __future__ import annotations

from types import ModuleType

from ..hardware import Spec
from .clock_settings import ClockSettings

# In the order of `Precision` in csrc/time/work.h: the dtypes whose published rate applies.
# The first known rate counts: a GPU without hardware for a dtype computes in the next wider dtype.
_DTYPES_OF_PRECISION = (
    ("float64", "float32"),
    ("float32",),
    ("tfloat32", "float32"),
    ("bfloat16", "float32"),
    ("float16", "float32"),
    ("float8", "bfloat16", "float16", "float32"),
    ("int8", "float16", "float32"),
)

# The dtypes that GPUs compute without matrix units.
_WITHOUT_MATRIX_UNITS = frozenset({"float64", "float32"})

_FIRST_WITH_MATRIX_UNITS = (7, 0)  # CUDA compute capability; Pascal computes float16 without


def gpu_facts_of(
    core: ModuleType,
    spec: Spec,
    network_bytes_per_second: float = 0.0,
    settings: ClockSettings = ClockSettings(),  # noqa: B008 - it is frozen
) -> object:
    """Return the extension's `GpuFacts` for a GPU with the facts `spec`.

    Args:
        core: the loaded extension.
        spec: the published facts of the GPU.
        network_bytes_per_second: the published rate of the GPU's share of the network between
            nodes, in one direction.
        settings: what the user says about the clock.
    """
    chosen = [published_dtype(spec, dtypes) for dtypes in _DTYPES_OF_PRECISION]
    gpu = core.GpuFacts()
    gpu.multiprocessors = spec.multiprocessors
    gpu.clock_hertz = spec.clock_hertz or 0.0
    gpu.l2_bytes = spec.l2_bytes or 0.0
    gpu.memory_bytes_per_second = spec.memory_bytes_per_second
    gpu.flops_per_second = [0.0 if d is None else spec.flops_per_second[d] for d in chosen]
    gpu.has_matrix_units = on_matrix_units(spec)
    gpu.link_bytes_per_second = spec.link_bytes_per_second or 0.0
    gpu.pcie_bytes_per_second = spec.pcie_bytes_per_second
    gpu.network_bytes_per_second = network_bytes_per_second
    # NVLink joins GPUs of one architecture. All others copy to each other through the host.
    gpu.fabric = spec.architecture if spec.link_bytes_per_second is not None else ""
    gpu.coefficients = settings.coefficients(spec)
    return gpu


def on_matrix_units(spec: Spec) -> list[bool]:
    """Return whether a GPU computes on matrix units, in the order of `Precision`."""
    if spec.capability is not None and spec.capability < _FIRST_WITH_MATRIX_UNITS:
        return [False] * len(_DTYPES_OF_PRECISION)
    chosen = [published_dtype(spec, dtypes) for dtypes in _DTYPES_OF_PRECISION]
    return [dtype is not None and dtype not in _WITHOUT_MATRIX_UNITS for dtype in chosen]


def published_dtype(spec: Spec, dtypes: tuple[str, ...]) -> str | None:
    """Return the first of `dtypes` with a known rate, or None if no rate is known."""
    return next((d for d in dtypes if d in spec.flops_per_second), None)
