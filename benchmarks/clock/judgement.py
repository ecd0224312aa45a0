"""Errors of the installed coefficients on the measurements that no fit has seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anyrig.virtual.build import load_extension

from . import gpu_fits, gpu_rows, measurements
from .collectives import Collectives
from .fitting import LONGEST_OVERHEAD_MS, facts
from .gpu_rows import recorded_rows
from .measurements import GPUS, Overhead, Rows

# Other versions of a measured GPU, which share its chip.
SAME_CHIP = {
    "V100-PCIe-32GB": ("V100-32GB", "V100-16GB"),
    "A100-PCIe-40GB": ("A100-40GB", "A100-80GB", "A100-PCIe-80GB"),
    "A100-PCIe-80GB": ("A100-40GB", "A100-80GB", "A100-PCIe-40GB"),
    "A100-80GB": ("A100-40GB", "A100-PCIe-40GB", "A100-PCIe-80GB"),
}

FLOAT32_GPUS = ("T4", "V100-PCIE-32GB", "P100-PCIE-16GB", "A100-PCIE-40GB")
CONVOLUTION_GPUS = (*FLOAT32_GPUS[:3], "A100-PCIE-80GB")
BFLOAT16_GPUS = ("A100-SXM", "H100-SXM")


@dataclass(frozen=True)
class Errors:
    """The errors of one group of coefficients on one GPU, in percent of the measured times."""

    gpu: str
    group: str
    rows: int
    median: float
    mean: float
    ninth_decile: float
    bias: float


def errors_of(gpu: str, group: str, ratios: Any) -> Errors:
    """Return the errors of predictions whose ratios to the measured times are `ratios`."""
    errors = 100 * np.abs(np.asarray(ratios) - 1)
    return Errors(
        gpu,
        group,
        len(errors),
        round(float(np.median(errors)), 1),
        round(float(np.mean(errors)), 1),
        round(float(np.quantile(errors, 0.9)), 1),
        round(100 * float(np.median(ratios)) - 100, 1),
    )


def ratios_of(rows: Rows, overhead: Overhead | None = None) -> Any:
    """Return predicted over measured time of the rows that judge, above five times the floor."""
    judged = rows.to_judge()
    gpu, _ = facts(rows.gpu)
    core = load_extension()
    seconds = np.asarray(core.predict_seconds(gpu, core.Works(judged.columns)))
    known = overhead or rows.overhead or Overhead(0.0)
    return (1e3 * seconds + known.ms_at(judged.progress)) / np.asarray(judged.ms)


def overhead_of(rows: Rows) -> Overhead:
    """Return the overhead that explains the rows for fitting best."""
    fitted = rows.to_fit(3)
    gpu, _ = facts(rows.gpu)
    core = load_extension()
    ms = 1e3 * np.asarray(core.predict_seconds(gpu, core.Works(fitted.columns)))
    candidates = [
        Overhead(float(start), float(growth))
        for start in np.linspace(0, LONGEST_OVERHEAD_MS, 21)
        for growth in np.linspace(0, LONGEST_OVERHEAD_MS, 41)
    ]

    def error(overhead: Overhead) -> float:
        predicted = ms + overhead.ms_at(fitted.progress)
        return float(np.mean(np.abs(np.log(predicted / np.asarray(fitted.ms)))))

    return min(candidates, key=error)


def judge_rows(folder: Path) -> Iterator[Errors]:
    for name in FLOAT32_GPUS:
        gpu = GPUS[name]
        products = [
            ratios_of(measurements.float32_products(folder, operator, name))
            for operator in ("linear", "bmm")
        ]
        yield errors_of(gpu, "product.simt", products[0])
        yield errors_of(gpu, "batched.simt", products[1])
        yield errors_of(gpu, "products, both", np.concatenate(products))
        memory = [ratios_of(rows) for rows in measurements.memory_bound(folder, name)]
        yield errors_of(gpu, "memory", np.concatenate(memory))
    for name in CONVOLUTION_GPUS:
        rows = measurements.convolutions(folder, name)
        yield errors_of(rows.gpu, "convolution.simt", ratios_of(rows, overhead_of(rows)))
    for name in BFLOAT16_GPUS:
        gpu = GPUS[name]
        products = ratios_of(measurements.bfloat16_products(folder, name))
        yield errors_of(gpu, "product.tensor", products)
        rows = measurements.attention(folder, name)
        yield errors_of(gpu, "attention", ratios_of(rows, Overhead(rows.floor_ms)))
        yield errors_of(gpu, "collective", Collectives(folder, name, judges=True).ratios())
    for group, ratios in gpu_fits.judged_ratios(recorded_rows()).items():
        yield errors_of(gpu_rows.GPU, group, ratios)
