"""GPUs that nobody measured in detail: what they reach follows from the best products on them.

`REACHED` has the fastest products of large matrices that others measured, in TFLOP/s: float32
without matrix units, and float16. A GPU reaches of its data sheet what the power limit leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

from anyrig.hardware import spec_of_key

PRODUCTS = "zzc0721/torch-performance-test-data, database.md (07858687)"
COPIES = "chsasank/device-benchmarks, README.md (02b8262e)"

# Medians where several machines were measured.
REACHED = {
    "A100-80GB": (19.1, 262.4),
    "RTX-3090": (24.8, 75.6),
    "RTX-4090": (54.7, 167.3),
    "RTX-A6000": (23.9, 120.5),
    "L40S": (46.9, 264.0),
    "RTX-PRO-6000": (77.2, 315.5),
    "T4": (4.3, 42.3),
    # By chsasank/device-benchmarks.
    "A10": (14.0, 54.0),
    "V100-32GB": (13.0, 84.0),
    # By zzc0721/torch-performance-test-data, issue 120.
    "L4": (11.4, 56.0),
}
# Of an RTX 2080, in place of an RTX 2080 Ti: 39.0 of 40.3 TFLOP/s.
RTX_2080_SHARE = 39.0 / 40.3
# A copy reaches 469 of 600 GB/s on an A10, and 831 of 936 on an RTX 3090.
A10_MEMORY = (469 / 600) / (831 / 936)


@dataclass(frozen=True)
class Derived:
    """Tables of coefficients that come from those of a relative.

    Attributes:
        of: the GPU or architecture that the tables are for.
        measured: the GPU whose products say what it reaches.
        like: the table that they come from.
        like_measured: the GPU whose products say what that table reaches.
        memory: what it reaches of the bandwidth, relative to `like`; None: as `like`.
    """

    of: str
    measured: str
    like: str
    like_measured: str
    memory: float | None = None


# Matrix units. The others' nearest relatives are in specs.toml.
MATRIX = (
    Derived("RTX-A6000", "RTX-A6000", "RTX-3090", "RTX-3090"),
    Derived("A10", "A10", "RTX-3090", "RTX-3090", A10_MEMORY),
    Derived("L40S", "L40S", "RTX-4090", "RTX-4090"),
    Derived("L4", "L4", "RTX-4090", "RTX-4090"),
    Derived("turing", "T4", "otherwise", "A100-80GB"),
    Derived("volta", "V100-32GB", "otherwise", "A100-80GB"),
)
# Without matrix units: all from the A100.
SIMT = ("RTX-3090", "RTX-4090", "RTX-A6000", "A10", "L40S", "L4", "RTX-PRO-6000")


def share_of(gpu: str, *, on_matrix_units: bool) -> float:
    """Return what the best products on a GPU reach of the data sheet's rate."""
    rates = spec_of_key(gpu).flops_per_second
    simt, matrix = REACHED[gpu]
    return 1e12 * (matrix / rates["float16"] if on_matrix_units else simt / rates["float32"])
