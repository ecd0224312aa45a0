"""Measured over predicted times of programs that no fit has seen, from the figures in `results`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyrig.hardware import Known, StepKind, spec_of_key
from anyrig.rehearsal.step_kind import kind_of_step

NEUSIGHT = "NeuSight (sitar-lab, 6945927d): scripts/asplos/label"
TIMM = "timm (huggingface/pytorch-image-models, aa4b5850): torch 1.12, cuDNN 8.3"
TIMM_INFERENCE = "timm (huggingface/pytorch-image-models, aa4b5850): torch {}"
TORCHVISION = "MatrixSP/pytorch-gpu-benchmark (7aca8438): torch {}"
OURS = "ours, of one H100: benchmarks/judge_gpu.py"
ITERATIONS = {
    "nanoGPT": "the README of karpathy/nanoGPT",
    "kernels of ResNet-50": "pytorch/kineto, blob 769c3eb7",
}
# The fit has seen their softmax along tokens, half of their time.
SEEN_BY_A_FIT = "GPT, "

# `Family` and `Precision` in csrc/time/work.h.
PRODUCT, CONVOLUTION = 1, 2
PRECISIONS = {"float32": 1, "TF32": 2, "mixed": 3, "bfloat16": 3, "float16": 4}
CONVOLUTIONAL = ("ResNet", "ConvNeXt", "EfficientNet", "U-Net")


@dataclass(frozen=True)
class Residual:
    """How far one prediction was off.

    Attributes:
        gpu: the key of the GPU.
        program: names the program, whatever the GPU.
        group: what kind of programs the source measured.
        kind: the kind of its step.
        ms: the measured time.
        virtual_ms: the predicted time.
        source: who measured it.
    """

    gpu: str
    program: str
    group: str
    kind: StepKind
    ms: float
    virtual_ms: float
    source: str

    @property
    def ratio(self) -> float:
        """The measured over the predicted time."""
        return self.ms / self.virtual_ms


def read_residuals(results: Path) -> Iterator[Residual]:
    """Yield the residuals of all committed figures."""
    yield from _image_models(results)
    for row in _rows(results, "clock-language-models"):
        kind = _sketched_kind(row["gpu"], PRODUCT, "float32", trains=row["trains"])
        group = "float32 language models, " + ("training" if row["trains"] else "inference")
        program = f"{row['model']}, {row['length']} x {row['batch']}"
        yield Residual(row["gpu"], program, group, kind, row["ms"], row["virtual_ms"], NEUSIGHT)
    for row in _rows(results, "clock-iterations"):
        name = row["iteration"].partition(",")[0]
        is_float32 = "float32" in row["iteration"]
        family = CONVOLUTION if "ResNet" in name else PRODUCT
        dtype = "float32" if is_float32 else "bfloat16"
        kind = _sketched_kind(row["gpu"], family, dtype, trains=True)
        group = f"training iterations: {name}"
        source = ITERATIONS[name]
        yield Residual(
            row["gpu"], row["iteration"], group, kind, row["ms"], row["virtual_ms"], source
        )
    for row in _rows(results, "gpu-h100-sxm"):
        if row.get("kernel_ms") and not row["name"].startswith(SEEN_BY_A_FIT):
            times = row["kernel_ms"], row["virtual_kernel_ms"]
            group = "kernels of training steps and forward passes"
            kind = _kind_of_name("H100-SXM", row["name"])
            yield Residual("H100-SXM", row["name"], group, kind, *times, OURS)


def _image_models(results: Path) -> Iterator[Residual]:
    for file in ("clock-programs", "clock-grouped-programs"):
        grouped = " with grouped convolutions, channels last" if "grouped" in file else ""
        group = f"training steps of image models{grouped or ' in mixed precision'}"
        for row in _rows(results, file):
            yield _residual(row, group, TIMM)
    for row in _rows(results, "clock-inference-programs"):
        order = "channels last" if row["layout"] == "nhwc" else "channels first"
        group = f"inference steps of image models in mixed precision, {order}"
        yield _residual(row, group, TIMM_INFERENCE.format(row["torch"].partition("+")[0]))
    for row in _rows(results, "clock-torchvision-programs"):
        mode = "training" if row["trains"] else "inference"
        group = f"{mode} steps of VGGs, wide ResNets and ResNeXt-101, {row['dtype']}"
        yield _residual(row, group, TORCHVISION.format(row["torch"]))


def _residual(row: dict[str, Any], group: str, source: str) -> Residual:
    kind = StepKind(
        Known(row["known"]), row["on_matrix_units"], row["convolves"], row["trains"], row["gpu"]
    )
    program = f"{row['model']}, {row.get('dtype', row['layout'])}"
    return Residual(row["gpu"], program, group, kind, row["ms"], row["virtual_ms"], source)


def _kind_of_name(gpu: str, name: str) -> StepKind:
    family = CONVOLUTION if name.startswith(CONVOLUTIONAL) else PRODUCT
    dtype = next((dtype for dtype in PRECISIONS if dtype in name), "float32")
    if "nanoGPT" in name:
        dtype = "bfloat16"
    return _sketched_kind(gpu, family, dtype, trains="forward" not in name)


def _sketched_kind(gpu: str, family: int, dtype: str, *, trains: bool) -> StepKind:
    """Return the kind of a step whose works are not recorded, from what they mostly are."""
    works = {
        "family": [family], "precision": [PRECISIONS[dtype]], "seconds": [1.0],
        "pass": [0], "backward": [trains], "access": [0],
    }  # fmt: skip
    kind = kind_of_step(works, spec_of_key(gpu))
    assert kind is not None
    return replace(kind, gpu=gpu)


def _rows(results: Path, name: str) -> list[dict[str, Any]]:
    path = results / f"{name}.json"
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows
