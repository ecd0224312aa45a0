"""Judge the virtual clock by DeepBench's times of recurrent layers on V100s and P100s.

`python benchmarks/judge_recurrent.py MEASUREMENTS` runs each layer in shape-only mode, without
products of the input, as in DeepBench (CUDNN_SKIP_INPUT): its inputs have one number. Prints the
errors on the half of the rows that the wait between steps (csrc/time/records/recurrent_record.cpp)
was fitted to, and on the other half. The figures go to `results`.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from anyrig.virtual import clock, install
from clock.measurements import fits
from workloads.figures import write_figures

GPUS = ("V100-32GB", "P100-PCIe-16GB")
# Label, device, dtype.
FILES = {
    "V100__Results_FP32.csv": ("V100, float32", 0, torch.float32),
    "V100__Results_-_FP16_ip_Mixed_math.csv": ("V100, float16", 0, torch.float16),
    "P100__Results_FP32.csv": ("P100, float32", 1, torch.float32),
}
KINDS = {"Vanilla": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
TITLE = "Recurrent Layers - "


@dataclass(frozen=True)
class Layer:
    """One row of DeepBench; `backward_ms` includes the gradients of the weights."""

    kind: str
    width: int
    samples: int
    steps: int
    forward_ms: float
    backward_ms: float


def layers_of(file: Path) -> Iterator[Layer]:
    """Yield the layers of more than one step; a single one shows the host's time alone."""
    kind = ""
    with file.open() as lines:
        for cells in csv.reader(lines):
            if cells[0].startswith(TITLE):
                kind = cells[0].removeprefix(TITLE)
            elif cells[0].startswith("All-Reduce"):
                return
            elif kind and cells[1].isdigit() and int(cells[3]) > 1:
                width, samples, steps = map(int, cells[1:4])
                forward, by_input, by_weight = map(float, cells[4:7])
                yield Layer(kind, width, samples, steps, forward, by_input + by_weight)


def predict_ms(layer: Layer, device: int, dtype: torch.dtype) -> tuple[float, float]:
    """Return the milliseconds of the forward and of the backward pass on the GPU."""
    place = torch.device("cuda", device)
    module = KINDS[layer.kind](1, layer.width, device=place, dtype=dtype)
    x = torch.empty(layer.steps, layer.samples, 1, device=place, dtype=dtype)
    moments = [clock().devices[device].compute_seconds]
    output = module(x)[0]
    moments.append(clock().devices[device].compute_seconds)
    output.backward(torch.empty_like(output))
    moments.append(clock().devices[device].compute_seconds)
    return 1e3 * (moments[1] - moments[0]), 1e3 * (moments[2] - moments[1])


def judge(label: str, file: Path, device: int, dtype: torch.dtype) -> Iterator[dict[str, object]]:
    errors: dict[tuple[bool, str], list[float]] = {}
    for layer in layers_of(file):
        is_fitted = fits((layer.width, layer.samples, layer.steps)) and device == 0
        forward, backward = predict_ms(layer, device, dtype)
        errors.setdefault((is_fitted, "forward"), []).append(forward / layer.forward_ms - 1)
        errors.setdefault((is_fitted, "backward"), []).append(backward / layer.backward_ms - 1)
    for (is_fitted, direction), found in sorted(errors.items(), reverse=True):
        yield {
            "gpu": label,
            "rows": len(found),
            "fitted": is_fitted,
            "direction": direction,
            "mean_error_percent": round(100 * statistics.mean(map(abs, found)), 1),
            "median_percent": round(100 * statistics.median(found), 1),
            "lowest_percent": round(100 * min(found), 1),
            "highest_percent": round(100 * max(found), 1),
        }


def main() -> int:
    if len(sys.argv) != 2:
        print("use: python benchmarks/judge_recurrent.py MEASUREMENTS")
        return 2
    install("+".join(f"1x{gpu}" for gpu in GPUS), shape_only=True, without_kernels=True)
    rows = []
    for name, (label, device, dtype) in FILES.items():
        for row in judge(label, Path(sys.argv[1]) / "deepbench" / name, device, dtype):
            print(*row.values(), sep="\t")
            rows.append(row)
    write_figures("clock-recurrent", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
