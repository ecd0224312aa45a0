"""Judge the virtual clock by training runs whose times others published.

`python benchmarks/judge_published_steps.py run [RUN]` rehearses the steps in `workloads/published`,
which have the operators of the libraries that the runs used. Without RUN, it rehearses all, and
writes the figures to `results`. No published time was used to fit the cost model or an interval.

DeiT-B's time is the time of a whole training run, 53 hours for 300 epochs of 1251 steps, divided by
its steps. It includes the evaluation after each epoch, which is rehearsed, too. It also includes
the start of the data loader's workers and the saved checkpoints, which are not rehearsed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from workloads.figures import bar_text, write_figures
from workloads.published.deit import EVALUATIONS_OF_EPOCH, STEPS_OF_EPOCH

BENCHMARKS = Path(__file__).parent
STEPS = 4
FMS = "https://github.com/foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/"
MISTRAL = f"{FMS}a100_80gb.csv (24bdadb)"
POWERLM = f"{FMS}a100_80gb_granite.csv (9239802)"
MAR = "https://github.com/LTH14/mar/pull/7"


@dataclass(frozen=True)
class Published:
    """A published time of a training step.

    Attributes:
        name: names the program.
        run: its name in `workloads.published`.
        gpu: the key of the GPU.
        ranks: how many of them trained together.
        seconds: the published time of a step.
        bar_percent: how far off its prediction may be.
        source: who published it.
        date: when.
        libraries: the versions that it ran with, as far as they are known.
        timed_as: those that the clock is told, for `--libraries`.
    """

    name: str
    run: str
    gpu: str
    ranks: int
    seconds: float
    bar_percent: float
    source: str
    date: str
    libraries: str
    timed_as: str | None = None


V100 = partial(Published, gpu="V100-32GB", ranks=8, bar_percent=20, timed_as="torch=1.7")
A100 = partial(Published, gpu="A100-80GB", bar_percent=12)
MISTRAL_7B = partial(
    A100, ranks=1, source=MISTRAL, date="2025-02-07",
    libraries="torch 2.4.1, transformers 4.48.1, flash-attn 2.7.3",
)  # fmt: skip
POWERLM_3B = partial(
    A100, ranks=1, source=POWERLM, date="2024-11-14",
    libraries="torch 2.4.1, transformers 4.45.2, flash-attn 2.6.3",
)  # fmt: skip
MAR_L = partial(A100, ranks=8, source=MAR, date="2024-07-31", libraries="torch 2.2.2, timm 0.9.12")
PUBLISHED = (
    V100(
        name="DINO, ViT-S/16, 64 images a GPU, float16", run="dino", seconds=0.617,
        source="https://github.com/facebookresearch/dino/issues/69", date="2021-06-08",
        libraries="torch 1.7.1, CUDA 11.0",
    ),
    V100(
        name="DeiT-B, 128 images a GPU, float16", run="deit",
        seconds=53 * 3600 / (300 * STEPS_OF_EPOCH), date="2021-01-15",
        source="https://arxiv.org/abs/2012.12877v2, 5.6; the program and its libraries: "
        "https://github.com/facebookresearch/deit, 1d38fa4c and issue 21",
        libraries="torch 1.7.0, CUDA 10.1",
    ),
    MISTRAL_7B(name="Mistral-7B, 4 x 4096, recomputed", run="mistral-4", seconds=5.35),
    MISTRAL_7B(name="Mistral-7B, LoRA, 4 x 4096, recomputed", run="mistral-lora-4", seconds=4.93),
    MISTRAL_7B(name="Mistral-7B, LoRA, 8 x 4096, recomputed", run="mistral-lora-8", seconds=9.77),
    POWERLM_3B(name="PowerLM-3b, 4 x 4096, recomputed", run="powerlm-4", seconds=3.21),
    POWERLM_3B(name="PowerLM-3b, 8 x 4096, recomputed", run="powerlm-8", seconds=6.27),
    MAR_L(name="MAR-L, 64 images a GPU, float16", run="mar", seconds=0.78),
    MAR_L(
        name="MAR-L, 64 images a GPU, float16, recomputed", run="mar-recomputed", seconds=0.94
    ),
)  # fmt: skip


def predict(row: Published) -> float:
    """Return the predicted seconds of a step."""
    seconds = _rehearsed(row.run, row, row.ranks)
    if row.run == "deit":
        batches = EVALUATIONS_OF_EPOCH / STEPS_OF_EPOCH
        seconds += batches * _rehearsed("deit-evaluation", row, 1)
    return seconds


def _rehearsed(run: str, row: Published, ranks: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "facts.json"
        rig = [row.gpu] if ranks == 1 else [f"{ranks}x{row.gpu}", "--ranks", str(ranks)]
        flags = ["--shape-only", "--assume-values", "--quiet", "--json", str(facts)]
        if row.timed_as is not None:
            flags += ["--libraries", row.timed_as]
        command = [sys.executable, "-m", "anyrig", "rehearse", "--rig", *rig, *flags]
        program = ["-m", "workloads.published", run, str(STEPS)]
        path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
        subprocess.run(
            [*command, *program],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=900,
            env={**os.environ, "PYTHONPATH": path},
        )
        return float(json.loads(facts.read_text())["typical_step"]["seconds"])


def main() -> int:
    if sys.argv[1:2] != ["run"]:
        print("nothing to do; use: python benchmarks/judge_published_steps.py run [NAME]")
        return 0
    chosen = [row for row in PUBLISHED if row.run in sys.argv[2:] or not sys.argv[2:]]
    rows: list[dict[str, Any]] = []
    for row in chosen:
        found = predict(row)
        percent = round(100 * found / row.seconds - 100, 1)
        rows.append({**asdict(row), "virtual_seconds": round(found, 4), "percent": percent})
        within = bar_text(f"within {row.bar_percent:g} %:", abs(percent) <= row.bar_percent)
        times = f"{row.seconds:6.3f} s, predicted {found:6.3f}: {percent:+.1f} %"
        print(f"{row.name:45s} {times}, {within}")
    if len(chosen) == len(PUBLISHED):
        write_figures("published-steps", rows)
    return 0 if all(abs(row["percent"]) <= row["bar_percent"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
