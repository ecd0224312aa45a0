"""The rates by which the virtual clock runs a card: published ones times what is reached."""

from __future__ import annotations

from types import ModuleType

from ..hardware import Spec, fraction_of

# In the order of `Precision` in csrc/time/rates.h: the dtypes whose rate stands for it, the first
# that is known. What a card has no unit for it computes in the next wider one.
_DTYPES_OF_PRECISION = (
    ("float64", "float32"),
    ("float32",),
    ("tfloat32", "float32"),
    ("bfloat16", "float32"),
    ("float16", "float32"),
    ("float8", "bfloat16", "float16", "float32"),
    ("int8", "float16", "float32"),
)

# In the order of `DenseKind` there.
_DENSE_KINDS = ("product", "convolution", "attention")


def rates_of(core: ModuleType, spec: Spec, network_bytes_per_second: float) -> object:
    """Return what the clock needs to know of a card, as the extension's `Rates`.

    `network_bytes_per_second` is the published rate of its part of the network between nodes.
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
    # NVLink joins cards of one kind; all others reach each other through the host.
    rates.fabric = spec.architecture if spec.link_bytes_per_second is not None else ""
    return rates


def flops_per_second(spec: Spec, dtypes: tuple[str, ...]) -> float:
    """Return the rate of the first of `dtypes` that is known; 0.0 if none is."""
    known = (spec.flops_per_second[d] for d in dtypes if d in spec.flops_per_second)
    return next(known, 0.0)
