"""A GPU of round numbers, with coefficients of round numbers, on which costs are computed by hand.

Ten multiprocessors compute 10 TFLOP/s in float32 and 100 on matrix units, and move 1 TB/s. One tile
exists, of 128 x 128 results: for a k of 1000 it takes a multiprocessor 32.768 us.
"""

from __future__ import annotations

from typing import Any

import pytest
from gpu_rates import FAMILIES, GPU, PRECISIONS, core

US = 1e-6
TILE = 2 * 128 * 128 * 1000 / 1e12  # seconds
HALF = {"precision": PRECISIONS.index("float16"), "element_bytes": 2}


def round_values() -> dict[str, list[float]]:
    values = {}
    for name, given in GPU.coefficients.items():
        if name.endswith("tile_efficiency"):
            values[name] = [1.0 if i == 2 else 0.0 for i in range(len(given))]
        elif "winograd" in name or "transformed" in name:
            values[name] = [0.0] * len(given)
        elif name.endswith("grouped_transpose_widths"):
            values[name] = [1e6] * len(given)  # no group is so wide
        else:
            is_factor = name.endswith("transpose_forward") or any(
                word in name for word in ("fraction", "share", "efficiency", "speedup", "exponent")
            )
            values[name] = [1.0 if is_factor else 0.0] * len(given)
    return values


def gpu(**coefficients: float | list[float]) -> Any:
    """Return the GPU; a coefficient is named by its last part, such as ``block_cycles``."""
    facts = core.GpuFacts()
    facts.multiprocessors = 10
    facts.clock_hertz = 1e9
    facts.l2_bytes = 0
    facts.memory_bytes_per_second = 1e12
    facts.flops_per_second = [5e12, 10e12, *[100e12] * 5]
    facts.has_matrix_units = [False, False, *[True] * 5]
    values = round_values()
    for name, value in coefficients.items():
        found = [known for known in values if known.endswith(f".{name}")]
        assert found, name
        for known in found:
            values[known] = value if isinstance(value, list) else [value] * len(values[known])
    facts.coefficients = values
    return facts


def seconds_of(facts: Any, family: str, **fields: float) -> float:
    columns = {"family": FAMILIES.index(family), "precision": PRECISIONS.index("float32"), **fields}
    works = core.Works({name: [float(value)] for name, value in columns.items()})
    return float(core.predict_seconds(facts, works)[0])


def product(facts: Any, m: int, n: int, k: int, **fields: float) -> float:
    return seconds_of(facts, "product", m=m, n=n, k=k, flops=2 * m * n * k, **fields)


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-9)
