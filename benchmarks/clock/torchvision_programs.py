"""Steps of torchvision's models on GPUs that take part in no fit, as work records.

`python -m clock.torchvision_programs RESULTS`, in the folder of benchmarks, takes the folder
``results`` of MatrixSP/pytorch-gpu-benchmark (7aca8438, 2025-07, MIT), and prints one JSON object
per program: what was measured, the distinct work records of a step, and how often each occurs.
Needs torchvision. Batches have 12 images; a training step has no optimizer. The models are those
with the longest kernels: the others wait for the host, which launches 100 to 2000 kernels in a few
milliseconds.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clock.work_log import distinct_records

MODELS = (
    *(f"vgg{layers}{norm}" for layers in (11, 13, 16, 19) for norm in ("", "_bn")),
    "wide_resnet50_2", "wide_resnet101_2", "resnext101_32x8d",
)  # fmt: skip
# Of libraries of today: key of specs.toml, files, version of PyTorch.
MEASURED = (
    ("RTX-5090", "5090/Fedora/NVIDIA GeForce RTX 5090", "2.7.1"),
    ("RTX-4060-Ti", "4060Ti16GB/NVIDIA GeForce RTX 4060 Ti", "2.1 or 2.2"),
)
RECORDED_ON = "RTX-4090"
PRECISIONS = {"half": "float16", "float": "float32"}
BATCH, SIZE = 12, 224


def read_ms(results: Path, files: str, precision: str, *, trains: bool) -> dict[str, float]:
    """Return the median milliseconds of each model."""
    mode = "train" if trains else "inference"
    path = results / f"{files}_1_gpus__{precision}_model_{mode}_benchmark.csv"
    with path.open() as file:
        lines = list(csv.DictReader(file))
    return {name: statistics.median(float(line[name]) for line in lines) for name in lines[0]}


def record_step(name: str, precision: str, *, trains: bool) -> dict[str, Any]:
    import torch
    import torchvision
    from torch.nn.functional import cross_entropy

    from anyrig.virtual.build import load_extension

    dtype = getattr(torch, PRECISIONS[precision])
    with torch.device("cuda"):
        model = getattr(torchvision.models, name)().to(dtype).train(trains)
        images = torch.empty(BATCH, 3, SIZE, SIZE, dtype=dtype)
        classes = torch.empty(BATCH, dtype=torch.long)

    def step() -> None:
        if not trains:
            with torch.no_grad():
                model(images)
            return
        model.zero_grad()
        cross_entropy(model(images), classes).backward()

    core = load_extension()
    step()
    core.begin_work_log()
    step()
    return distinct_records(core.end_work_log())


def programs(results: Path) -> Iterator[dict[str, Any]]:
    for precision, dtype in PRECISIONS.items():
        for trains in (False, True):
            measured = [
                (gpu, torch, read_ms(results, files, precision, trains=trains))
                for gpu, files, torch in MEASURED
            ]
            for name in MODELS:
                records = record_step(name, precision, trains=trains)
                for gpu, torch, ms in measured:
                    yield {
                        "gpu": gpu,
                        "torch": torch,
                        "model": name,
                        "layout": "nchw",
                        "dtype": dtype,
                        "trains": trains,
                        "batch": BATCH,
                        "ms": round(ms[name], 3),
                        **records,
                    }


def main() -> int:
    import torch

    from anyrig.virtual import install

    install(RECORDED_ON, shape_only=True)
    torch.backends.cudnn.benchmark = True
    for program in programs(Path(sys.argv[1])):
        print(json.dumps(program), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
