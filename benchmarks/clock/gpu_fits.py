"""Coefficients of Hopper, fitted to what `measure_gpu.py` timed on an H100.

Some hundred rows fit each group, so the values are held near their starts where few rows determine
them. They start from those that were derived from other GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import training_programs
from .fitting import Coefficients, Part, Unknown, facts, fit_loss
from .gpu_rows import GPU, programs_of

SOURCE = "benchmarks/results/gpu-rows-h100-sxm.json, an H100-SXM, PyTorch 2.11, CUDA 13.0"
PULL = 0.01
STARTS = 4
LEAST_JUDGED_MS = 0.01  # five times the shortest kernel of other GPUs' tables

# The order of `Access`. Each with elements that are short in half precision: cycles for one.
_FITTED_ACCESSES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16)
_ELEMENT_CYCLES = {4: 1.2, 5: 0.8, 6: 0.8, 7: 0.5, 11: 1.1, 12: 2.0, 16: 0.5, 18: 0.8}

Row = Mapping[str, Any]


def _is_memory(row: Row) -> bool:
    return bool(row["family"] == "memory-bound")


def _is_product(name: str, dtypes: Sequence[str]) -> Callable[[Row], bool]:
    return lambda row: row["name"] == name and row["dtype"] in dtypes


def _is_convolution(is_simt: bool) -> Callable[[Row], bool]:
    return lambda row: row["family"] == "convolutions" and (row["dtype"] == "float32") == is_simt


def _is_attention(row: Row) -> bool:
    return bool(row["family"] == "attention")


# Which rows belong to a group; the group's errors are those of the other half of these rows.
ROWS: dict[str, Callable[[Row], bool]] = {
    "memory": _is_memory,
    "product.simt": _is_product("linear", ("float32",)),
    "batched.simt": _is_product("bmm", ("float32",)),
    "convolution.simt": _is_convolution(True),
    "convolution.tensor": _is_convolution(False),
}


@dataclass(frozen=True)
class Start:
    """Where the fit of a coefficient starts, by index."""

    name: str
    values: Mapping[int, float]
    is_fraction: bool = True

    def unknowns(self, group: str) -> list[Unknown]:
        return [
            Unknown(f"{group}.{self.name}", value, i, self.is_fraction)
            for i, value in self.values.items()
        ]


def _one(name: str, value: float, is_fraction: bool = True) -> Start:
    return Start(name, {0: value}, is_fraction)


_TILES = (
    _one("lone_share", 0.85), _one("memory_fraction", 0.7), _one("overlap", 0.15),
    _one("wave_exponent", 0.7), _one("block_cycles", 500, False),
)  # fmt: skip
_CONVOLUTION = (
    Start("few_channels_rate", {0: 0.35, 1: 0.3, 2: 0.3}),
    _one("memory_fraction", 0.85), _one("overlap", 0.3), _one("depthwise_memory_fraction", 0.6),
    _one("grouped_efficiency", 0.4),
)  # fmt: skip

STARTS_OF: dict[str, tuple[Start, ...]] = {
    "memory": (
        Start("fraction", dict.fromkeys(_FITTED_ACCESSES, 0.8)),
        Start("element_cycles", _ELEMENT_CYCLES, False),
        _one("cache_share", 0.4), _one("cache_speedup", 4, False), _one("row_cycles", 250, False),
        _one("column_cycles", 2, False), _one("softmax_column_cycles", 2000, False),
        _one("join_seconds", 3.5e-6, False),
        _one("kernel_floor_seconds", 1.2e-6, False),
    ),
    "product.simt": (
        Start("tile_efficiency", {2: 0.8, 3: 0.6, 4: 0.8, 5: 0.6, 7: 0.7, 10: 0.2}), *_TILES,
    ),
    "batched.simt": (Start("tile_efficiency", {2: 0.85, 5: 0.3, 6: 0.5, 10: 0.2}), *_TILES),
    "convolution.simt": (
        Start("efficiency", {0: 0.75, 1: 0.7, 2: 0.5}),
        Start("depthwise_efficiency", {0: 0.04, 1: 0.04, 2: 0.04}),
        Start("transformed_efficiency", {2: 0.6, 3: 0.12, 5: 0.06, 7: 0.15}),
        _one("winograd_efficiency", 0.6), _one("transform_fraction", 0.9),
        _one("filter_fraction", 0.7), _one("winograd_overhead", 12, False), *_CONVOLUTION,
    ),
    "convolution.tensor": (
        Start("efficiency", {0: 0.8, 1: 0.8, 2: 0.8}),
        Start("depthwise_efficiency", {0: 0.14, 1: 0.14, 2: 0.14}),
        _one("depthwise_planar_share", 0.3),
        _one("layout_fraction", 0.8), _one("grouped_transpose_fraction", 0.3), *_CONVOLUTION,
    ),
}  # fmt: skip


def fit_group(rows: Sequence[Row], group: str, base: Coefficients) -> Coefficients:
    """Return `base` with the values of `group` that fit half of the rows best."""
    belongs = ROWS[group]
    chosen = programs_of(rows, lambda row: belongs(row) and training_programs.fits(row["model"]))
    unknowns = [each for start in STARTS_OF[group] for each in start.unknowns(group)]
    values, _ = fit_loss(base, unknowns, lambda v, _: chosen.loss(v), pull=PULL, starts=STARTS)
    if group == "memory":
        # Conversions move data as other copies do, and what was not timed is as on other GPUs.
        values["memory.fraction"][18] = values["memory.fraction"][0]
    return values


def ratios_of(rows: Sequence[Row], belongs: Callable[[Row], bool]) -> Any:
    """Return predicted over measured time of the rows that judge, by the installed coefficients."""
    judged = programs_of(
        rows,
        lambda row: (
            belongs(row)
            and not training_programs.fits(row["model"])
            and row["ms"] > LEAST_JUDGED_MS
        ),
    )
    gpu, _ = facts(GPU)
    return judged.predict(dict(gpu.coefficients)) / judged.ms


def judged_ratios(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the ratios of each group."""
    return {group: ratios_of(rows, belongs) for group, belongs in ROWS.items()}


def fit_attention(rows: Sequence[Row], public: Part, base: Coefficients) -> Coefficients:
    """Return `base` with coefficients of attention that fit the rows and a public measurement."""
    fits = training_programs.fits
    chosen = programs_of(rows, lambda row: _is_attention(row) and fits(row["model"]))
    starts = (
        Start("forward_efficiency", {1: 0.3, 2: 0.9}),
        Start("backward_efficiency", {1: 0.3, 2: 0.8}),
        _one("head_overhead", 40, False), _one("block_overhead", 200, False),
        _one("memory_fraction", 0.5),
    )  # fmt: skip
    unknowns = [each for start in starts for each in start.unknowns("attention")]
    values, _ = fit_loss(
        base, unknowns, lambda v, overhead: chosen.loss(v) + public.loss(v, overhead), starts=STARTS
    )
    return values
