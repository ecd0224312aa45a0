"""The rates of the virtual clock: a GPU's published rates times the fraction that work reaches."""

from __future__ import annotations

from types import ModuleType

from ..hardware import Spec, fraction_of

# In the order of `Precision` in csrc/time/rates.h: the dtypes whose published rate applies.
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

# In the order of `DenseKind` in csrc/time/rates.h.
_DENSE_KINDS = ("product", "convolution", "attention")


def rates_of(core: ModuleType, spec: Spec, network_bytes_per_second: float) -> object:
    """Return the extension's `Rates` for a GPU with the facts `spec`.

    Args:
        core: the loaded extension.
        spec: the published facts of the GPU.
        network_bytes_per_second: the published rate of the GPU's share of the network between
            nodes, in one direction.
    """

    def reached(kind: str, bytes_per_second: float | None) -> float:
        fraction = fraction_of(kind, spec.architecture).fraction
        return 0.0 if bytes_per_second is None else fraction * bytes_per_second

    rates = core.Rates()
    rates.sheet_flops_per_second = [flops_per_second(spec, d) for d in _DTYPES_OF_PRECISION]
    rates.fractions = [fraction_of(kind, spec.architecture).fraction for kind in _DENSE_KINDS]
    rates.memory_bytes_per_second = reached("memory", spec.memory_bytes_per_second)
    rates.link_bytes_per_second = reached("link", spec.link_bytes_per_second)
    rates.pcie_bytes_per_second = reached("pcie", spec.pcie_bytes_per_second)
    rates.network_bytes_per_second = reached("network", network_bytes_per_second)
    # NVLink joins GPUs of one architecture. All others copy to each other through the host.
    rates.fabric = spec.architecture if spec.link_bytes_per_second is not None else ""
    return rates


def flops_per_second(spec: Spec, dtypes: tuple[str, ...]) -> float:
    """Return the FLOP/s of the first of `dtypes` with a known rate, or 0.0 if none is known."""
    known = (spec.flops_per_second[d] for d in dtypes if d in spec.flops_per_second)
    return next(known, 0.0)
