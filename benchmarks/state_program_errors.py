"""Write the known errors of whole programs, from the figures in `results`, where anyrig reads them.

`python benchmarks/state_program_errors.py write`, after `judge_steps.py`,
`judge_language_models.py`, `judge_iterations.py` and `judge_gpu.py`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyrig import hardware

HEAD = """\
# How far the virtual times of whole programs are off, in percent: of programs that no fit has seen.
# benchmarks/state_program_errors.py writes this file from the figures in benchmarks/results.
"""
NEUSIGHT = "NeuSight (sitar-lab, 6945927d): scripts/asplos/label"
TIMM = "timm (huggingface/pytorch-image-models, aa4b5850): torch 1.12, cuDNN 8.3"
TIMM_INFERENCE = "timm (huggingface/pytorch-image-models, aa4b5850): torch {}"
TORCHVISION = "MatrixSP/pytorch-gpu-benchmark (7aca8438): torch {}"
OURS = "ours, of one H100: benchmarks/judge_gpu.py"
# The fit has seen their softmax along tokens, half of their time.
SEEN_BY_A_FIT = "GPT, "
SOURCES = {
    "nanoGPT": "the README of karpathy/nanoGPT",
    "kernels of ResNet-50": "pytorch/kineto, blob 769c3eb7",
}


def compared_programs(results: Path) -> Iterator[tuple[str, str, str, float, float]]:
    """Yield GPU, kind, source, and the published and predicted milliseconds of each program."""
    for row in _rows(results / "clock-language-models.json"):
        kind = "float32 language models, " + ("training" if row["trains"] else "inference")
        yield row["gpu"], kind, NEUSIGHT, row["ms"], row["virtual_ms"]
    for row in _rows(results / "clock-programs.json"):
        kind = "training steps of image models in mixed precision"
        yield "RTX-3090", kind, TIMM, row["ms"], row["virtual_ms"]
    for row in _rows(results / "clock-grouped-programs.json"):
        kind = "training steps of image models with grouped convolutions, channels last"
        yield "RTX-3090", kind, TIMM, row["ms"], row["virtual_ms"]
    for row in _rows(results / "clock-inference-programs.json"):
        order = "channels last" if row["layout"] == "nhwc" else "channels first"
        kind = f"inference steps of image models in mixed precision, {order}"
        source = TIMM_INFERENCE.format(row["torch"].partition("+")[0])
        yield row["gpu"], kind, source, row["ms"], row["virtual_ms"]
    for row in _rows(results / "clock-torchvision-programs.json"):
        mode = "training" if row["trains"] else "inference"
        kind = f"{mode} steps of VGGs, wide ResNets and ResNeXt-101, {row['dtype']}"
        yield row["gpu"], kind, TORCHVISION.format(row["torch"]), row["ms"], row["virtual_ms"]
    for row in _rows(results / "clock-iterations.json"):
        name = row["iteration"].partition(",")[0]
        yield (
            row["gpu"],
            f"training iterations: {name}",
            SOURCES[name],
            row["ms"],
            row["virtual_ms"],
        )

    for row in _rows(results / "gpu-h100-sxm.json"):
        if row.get("kernel_ms") and not row["name"].startswith(SEEN_BY_A_FIT):
            kind = "kernels of training steps and forward passes"
            yield "H100-SXM", kind, OURS, row["kernel_ms"], row["virtual_kernel_ms"]


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def tables(results: Path) -> str:
    errors: dict[tuple[str, str, str], list[float]] = {}
    for *group, ms, predicted in compared_programs(results):
        errors.setdefault(tuple(group), []).append(100 * abs(predicted / ms - 1))  # type: ignore[arg-type]
    return "".join(
        f'\n[[programs]]\ngpu = "{gpu}"\nkind = "{kind}"\nprograms = {len(found)}\n'
        f"mean = {statistics.mean(found):.1f}\nmedian = {statistics.median(found):.1f}\n"
        f'largest = {max(found):.1f}\nsource = "{source}"\n'
        for (gpu, kind, source), found in sorted(errors.items())
    )


def main() -> int:
    if sys.argv[1:] != ["write"]:
        print("nothing to do; use: python benchmarks/state_program_errors.py write")
        return 0
    path = Path(hardware.__file__).with_name("program_errors.toml")
    path.write_text(HEAD + tables(Path(__file__).with_name("results")))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
