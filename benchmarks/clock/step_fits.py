"""GPUs of which whole steps were measured, and no single kernels.

    RTX-4090             inference steps: all coefficients of matrix units, memory and attention
    RTX-3090             the same, with training steps, which also show the backward passes
    RTX-PRO-6000-Max-Q   the RTX-4090's, with two factors: what its matrix kernels and its other
                         kernels reach, relative to the data sheets
    others               the nearest of these; the first factor follows from the best products that
                         others measured, and the second from the kind of memory

A matrix kernel moves data no faster than its clock allows: what it reaches of the bandwidth has the
smaller one of the factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .fitting import Coefficients, Unknown, fit_loss
from .programs import Programs
from .training_programs import fits

PRODUCT, CONVOLUTION = "product.tensor", "convolution.tensor"
GROUPS = (PRODUCT, CONVOLUTION, "memory", "attention")
NEWEST = {"RTX-4090": "2.9", "RTX-3090": "2.4", "RTX-PRO-6000-Max-Q": "2.9"}
TILES = (0.95, 0.95, 0.85, 0.75, 0.75, 0.6, 0.4, 0.4, 0.3, 0.3, 0.2)
PULL = 0.02

# cuDNN 9 multiplies the points of NCHW images as they are, whatever their alignment. Its backward
# passes were not measured: those of cuDNN 8.3 transform them.
PLANAR_ALIGNMENT = [1.0, 0.0, 0.0]

# By coefficient and index, where the fits start. Not fractions: what the clock may raise above the
# data sheet's rate, and times.
STARTS = {
    f"{PRODUCT}.tile_efficiency": {i: TILES[i] for i in (0, 2, 3, 5, 6, 8, 10)},
    f"{PRODUCT}.block_cycles": {0: 2000.0},
    f"{PRODUCT}.lone_share": {0: 0.6},
    f"{PRODUCT}.memory_fraction": {0: 0.75},
    f"{PRODUCT}.overlap": {0: 0.15},
    f"{CONVOLUTION}.efficiency": {0: 0.85},
    f"{CONVOLUTION}.depthwise_efficiency": {0: 0.3},
    f"{CONVOLUTION}.memory_fraction": {0: 0.8},
    f"{CONVOLUTION}.overlap": {0: 0.2},
    f"{CONVOLUTION}.layout_fraction": {0: 0.8},
    f"{CONVOLUTION}.grouped_efficiency": {0: 0.4},
    f"{CONVOLUTION}.depthwise_memory_fraction": {0: 0.6},
    f"{CONVOLUTION}.depthwise_planar_share": {0: 0.7},
    f"{CONVOLUTION}.few_channels_rate": {0: 0.3},
    "memory.fraction": {0: 0.88, 1: 0.85, 2: 0.7, 6: 0.9, 12: 0.6, 14: 0.75},
    "memory.window_step_seconds": {0: 2.5e-7},
    "attention.forward_efficiency": {0: 0.7, 1: 0.4},
}
BACKWARD_STARTS = {
    f"{CONVOLUTION}.efficiency": {1: 0.8, 2: 0.75},
    f"{CONVOLUTION}.depthwise_efficiency": {1: 0.3, 2: 0.15},
    f"{CONVOLUTION}.grouped_transpose_fraction": {0: 0.03},
    "memory.fraction": {3: 0.6, 4: 0.8, 5: 0.75, 7: 0.7, 15: 0.5},
}
UNBOUNDED = ("_cycles", "_seconds", "efficiency")

# Relative to `memory.fraction` of pointwise work, where no step shows an access.
LIKE_POINTWISE = (8, 9, 10, 11, 13, 16, 17, 18)
BACKWARD_SHARE = 63 / 73  # of attention: arXiv 2307.08691


@dataclass(frozen=True)
class Factors:
    """What a GPU reaches, relative to the GPU that its coefficients come from.

    Attributes:
        matrix: of the rate of matrix units.
        memory: of the bandwidth.
    """

    matrix: float
    memory: float = 1.0

    def scale(self, values: Coefficients) -> Coefficients:
        """Return the coefficients of matrix units, memory and attention with these factors."""
        moving = min(self.matrix, self.memory)
        by_name = {
            f"{PRODUCT}.tile_efficiency": self.matrix,
            f"{PRODUCT}.memory_fraction": moving,
            f"{CONVOLUTION}.memory_fraction": moving,
            f"{CONVOLUTION}.depthwise_memory_fraction": moving,
            f"{CONVOLUTION}.layout_fraction": self.memory,
            "memory.fraction": self.memory,
            "attention.forward_efficiency": self.matrix,
            "attention.backward_efficiency": self.matrix,
            "attention.memory_fraction": moving,
        }
        return {
            name: [by_name.get(name, 1.0) * value for value in given]
            for name, given in values.items()
        }


def unknowns(*starts: dict[str, dict[int, float]]) -> list[Unknown]:
    return [
        Unknown(name, start, i, is_fraction=not name.endswith(UNBOUNDED))
        for table in starts
        for name, by_index in table.items()
        for i, start in by_index.items()
    ]


def start_of(installed: Coefficients) -> Coefficients:
    """Return the coefficients to fit from, with what cuDNN 9 does differently."""
    return {name: list(values) for name, values in installed.items()} | {
        f"{PRODUCT}.tile_efficiency": list(TILES),
        f"{PRODUCT}.throttle": [0.0],
        f"{CONVOLUTION}.throttle": [0.0],
        f"{CONVOLUTION}.planar_alignment_bytes": list(PLANAR_ALIGNMENT),
        f"{CONVOLUTION}.grouped_transpose_forward": [0.0],
    }


def inference_of(gpu: str, programs: Sequence[dict[str, Any]]) -> list[Programs]:
    """Return the steps on `gpu` in its newest PyTorch, and those in other layouts."""
    chosen = [p for p in programs if p["gpu"] == gpu]
    newest = [p for p in chosen if p["layout"] == "nchw" and p["torch"].startswith(NEWEST[gpu])]
    others = [p for p in chosen if p["layout"] == "nhwc"]
    return [Programs(found, gpu) for found in (newest, others) if found]


def fit_steps(
    installed: Coefficients, sets: Sequence[Programs], *, with_backward: bool
) -> Coefficients:
    """Fit the coefficients of matrix units, memory and attention.

    Takes the half of `sets` that is for fitting.
    """
    parts = [programs.select(fits) for programs in sets]
    starts = (STARTS, BACKWARD_STARTS) if with_backward else (STARTS,)

    def loss(values: Coefficients, _: object) -> float:
        return sum(part.loss(values) for part in parts)

    values, _ = fit_loss(start_of(installed), unknowns(*starts), loss, pull=PULL, starts=1)
    fractions = values["memory.fraction"]
    before = installed["memory.fraction"]
    for i in LIKE_POINTWISE:
        fractions[i] = fractions[0] * before[i] / before[0]
    forward = values["attention.forward_efficiency"]
    values["attention.backward_efficiency"] = [BACKWARD_SHARE * each for each in forward]
    return values


def take_backward(values: Coefficients, measured: Coefficients) -> None:
    """Give `values` the coefficients of backward passes that were fitted in `measured`."""
    for name, by_index in BACKWARD_STARTS.items():
        for i in by_index:
            values[name][i] = measured[name][i]


def fit_factors(values: Coefficients, sets: Sequence[Programs]) -> Factors:
    """Fit the factors of a GPU whose coefficients come from `values`."""
    parts = [programs.select(fits) for programs in sets]
    names = ("matrix", "memory")

    def loss(factors: Coefficients, _: object) -> float:
        scaled = Factors(*(factors[name][0] for name in names)).scale(values)
        return sum(part.loss(scaled) for part in parts)

    found, _ = fit_loss(
        {name: [1.0] for name in names},
        [Unknown(name, 1.0, is_fraction=False) for name in names],
        loss,
        starts=1,
    )
    return Factors(*(found[name][0] for name in names))
