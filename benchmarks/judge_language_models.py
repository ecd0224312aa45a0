"""Judge the virtual clock by NeuSight's measurements of whole float32 language models.

`python benchmarks/judge_language_models.py LABELS` takes the folder ``scripts/asplos/label`` of
sitar-lab/NeuSight, from which nothing is fitted. Mixtures of experts are left out. The figures go
to `results`. NeuSight's own mean error is 8.9 %.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.figures import write_figures

GPUS = {
    "NVIDIA_A100-PCIE-40GB": "A100-PCIe-40GB",
    "NVIDIA_A100_80GB_PCIe": "A100-PCIe-80GB",
    "NVIDIA_H100_80GB_HBM3": "H100-SXM",
    "NVIDIA_L4": "L4",
    "Tesla_P100-PCIE-16GB": "P100-PCIe-16GB",
    "Tesla_T4": "T4",
    "Tesla_V100-PCIE-32GB": "V100-PCIe-32GB",
}


def read_labels(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        parts = path.stem.split("-")
        if len(parts) == 4 and "switch" not in parts[0]:
            name, mode, length, batch = parts
            yield {
                "model": name,
                "trains": mode == "train",
                "length": int(length),
                "batch": int(batch),
                "ms": json.loads(path.read_text())["e2e_latency"],
            }


def predict(gpu: str, labels: list[dict[str, Any]]) -> list[float]:
    """Predict in a new process, since a process has only one rig."""
    command = [sys.executable, __file__, "--on", gpu, json.dumps(labels)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    return json.loads(finished.stdout.splitlines()[-1])


def predict_here(gpu: str, labels: list[dict[str, Any]]) -> list[float]:
    import torch

    from anyrig.virtual import install
    from clock.language_models import step_ms

    install(gpu, shape_only=True, without_kernels=True)
    times = []
    for label in labels:
        sizes = {"length": label["length"], "batch": label["batch"]}
        times.append(step_ms(label["model"], trains=label["trains"], **sizes))
        torch.cuda.empty_cache()
    return times


def main() -> int:
    if len(sys.argv) < 2:
        print("nothing to do; use: python benchmarks/judge_language_models.py LABELS")
        return 0
    if sys.argv[1] == "--on":
        print(json.dumps(predict_here(sys.argv[2], json.loads(sys.argv[3]))))
        return 0
    rows = []
    for folder, gpu in GPUS.items():
        labels = list(read_labels(Path(sys.argv[1]) / folder))
        errors = []
        for label, ms in zip(labels, predict(gpu, labels), strict=True):
            rows.append({"gpu": gpu, **label, "virtual_ms": round(ms, 1)})
            errors.append(100 * abs(ms / label["ms"] - 1))
        print(f"{gpu:16s} {len(errors):3d} programs, mean error {statistics.mean(errors):.1f} %")
    write_figures("clock-language-models", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
