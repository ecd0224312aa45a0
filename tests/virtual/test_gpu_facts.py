"""The facts that the clock gets for a GPU: its data sheet and its coefficients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anyrig.hardware import coefficients_of, spec_of_key, values_of
from anyrig.virtual.clock_settings import ClockSettings, assumed_seconds
from anyrig.virtual.gpu_facts import gpu_facts_of, published_dtype

CORE: Any = SimpleNamespace(GpuFacts=SimpleNamespace)
# In the order of `Precision` in csrc/time/work.h.
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
def test_facts_are_those_of_the_spec(key: str, stand_ins: dict[str, str]) -> None:
    spec = spec_of_key(key)
    gpu: Any = gpu_facts_of(CORE, spec, 50e9)
    published = [stand_ins.get(dtype, dtype) for dtype in ORDER]
    assert gpu.flops_per_second == [spec.flops_per_second[p] for p in published]
    assert gpu.has_matrix_units == [p not in ("float64", "float32") for p in published]
    assert gpu.memory_bytes_per_second == spec.memory_bytes_per_second
    assert gpu.multiprocessors == spec.multiprocessors
    assert gpu.l2_bytes == spec.l2_bytes
    assert gpu.clock_hertz == spec.clock_hertz
    assert gpu.pcie_bytes_per_second == spec.pcie_bytes_per_second
    assert gpu.link_bytes_per_second == (spec.link_bytes_per_second or 0.0)
    assert gpu.network_bytes_per_second == 50e9
    assert gpu.fabric == (spec.architecture if spec.link_bytes_per_second else "")
    assert gpu.coefficients == values_of(coefficients_of(spec))


def test_a_given_time_of_the_host_is_divided_as_the_assumed_one() -> None:
    spec = spec_of_key("T4")
    assumed = values_of(coefficients_of(spec))
    gpu: Any = gpu_facts_of(CORE, spec, settings=ClockSettings(3 * assumed_seconds(spec)))
    for name in ("host.launch_seconds", "host.operator_seconds"):
        assert gpu.coefficients[name] == pytest.approx([3 * assumed[name][0]])
    others = gpu.coefficients.keys() - {"host.launch_seconds", "host.operator_seconds"}
    assert all(gpu.coefficients[name] == assumed[name] for name in others)


def test_an_unknown_rate_is_zero() -> None:
    spec: Any = SimpleNamespace(flops_per_second={"float32": 1.0, "float16": 2.0})
    assert published_dtype(spec, ("float16", "float32")) == "float16"
    assert published_dtype(spec, ("float64", "float32")) == "float32"
    assert published_dtype(spec, ("float64",)) is None
