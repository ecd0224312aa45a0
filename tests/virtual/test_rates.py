"""The rates that the clock gets for a GPU: the published rates times the fractions reached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anyrig.hardware import fraction_of, spec_of_key
from anyrig.virtual.rates import flops_per_second, rates_of

CORE: Any = SimpleNamespace(Rates=SimpleNamespace)
# In the order of `Precision` in csrc/time/rates.h.
ORDER = ("float64", "float32", "tfloat32", "bfloat16", "float16", "float8", "int8")


@pytest.mark.parametrize(
    ("key", "stand_ins"),
    [
        (
            "V100-32GB",
            {
                "tfloat32": "float32",
                "bfloat16": "float32",
                "float8": "float16",
                "int8": "float16",
            },
        ),
        ("T4", {"tfloat32": "float32", "bfloat16": "float32", "float8": "float16"}),
        ("A100-80GB", {"float8": "bfloat16"}),
        ("H100-SXM", {}),
    ],
)
def test_rates_are_those_of_the_spec(key: str, stand_ins: dict[str, str]) -> None:
    spec = spec_of_key(key)
    rates: Any = rates_of(CORE, spec, 50e9)
    published = [stand_ins.get(dtype, dtype) for dtype in ORDER]
    published = [p if p in spec.flops_per_second else "float32" for p in published]
    assert rates.sheet_flops_per_second == [spec.flops_per_second[p] for p in published]
    assert {d: p for d, p in zip(ORDER, published, strict=True) if d != p} == stand_ins
    for kind, fraction in zip(
        ("product", "convolution", "attention"), rates.fractions, strict=True
    ):
        assert fraction == fraction_of(kind, spec.architecture).fraction
    reached = {
        "memory": spec.memory_bytes_per_second,
        "pcie": spec.pcie_bytes_per_second,
        "link": spec.link_bytes_per_second,
        "network": 50e9,
    }
    for kind, published_rate in reached.items():
        expected = fraction_of(kind, spec.architecture).fraction * (published_rate or 0.0)
        assert getattr(rates, f"{kind}_bytes_per_second") == expected
    assert rates.fabric == (spec.architecture if spec.link_bytes_per_second else "")


def test_an_unknown_rate_is_zero() -> None:
    spec: Any = SimpleNamespace(flops_per_second={"float32": 1.0, "float16": 2.0})
    assert flops_per_second(spec, ("float16", "float32")) == 2.0
    assert flops_per_second(spec, ("float64", "float32")) == 1.0
    assert flops_per_second(spec, ("float64",)) == 0.0
