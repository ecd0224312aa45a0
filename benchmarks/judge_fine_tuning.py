"""Judge peaks of memory by public measurements of fine-tuning, full and with LoRA.

The measurements are of FanBB2333/FakeGPU (docs/llm-sft-memory-estimation.md, 2026-07-21): peaks
of `torch.cuda.max_memory_allocated` of one step on an RTX PRO 5000 with PyTorch 2.8 and
transformers 5.12.1. Two of them were repeated there on an RTX 3090 Ti with PyTorch 2.12, with the
same result; it is the GPU here, since later releases of PyTorch give cuBLAS a larger workspace on
Blackwell (pull request 175344). Nothing is fitted to them.

    pip install transformers==5.12.1 peft
    python benchmarks/judge_fine_tuning.py
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from workloads.figures import bar_text, write_figures

PROGRAM = str(Path(__file__).parent / "workloads" / "fine_tuning.py")
GPU, BAR_PERCENT, GIB = "RTX-3090-Ti", 1.0, 2**30
# Model, LoRA, recomputation of layers, backward passes, tokens; trained parameters, GiB.
MEASURED = [
    ("0.8B", False, False, 2, 16, 752_393_024, 6.626),
    ("0.8B", False, False, 1, 128, 752_393_024, 6.687),
    ("0.8B", False, True, 1, 128, 752_393_024, 6.679),
    ("0.8B", True, False, 1, 16, 5_411_328, 1.756),
    ("0.8B", True, False, 1, 128, 5_411_328, 2.696),
    ("0.8B", True, True, 1, 128, 5_411_328, 1.876),
    ("2B", False, False, 2, 16, 1_881_825_088, 15.939),
    ("2B", True, False, 1, 16, 8_409_600, 3.868),
    ("2B", True, False, 1, 128, 8_409_600, 4.959),
    ("2B", True, True, 1, 128, 8_409_600, 3.974),
]


def rehearse(program: dict[str, Any]) -> dict[str, int]:
    flags = ["--rig", GPU, "--shape-only", "--assume-values", "--quiet"]
    command = [sys.executable, "-m", "anyrig", "rehearse", *flags, PROGRAM, json.dumps(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    missing = [name for name in ("transformers", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{' and '.join(missing)} is missing: pip install transformers==5.12.1 peft")
        return 2
    table = Table(*"model method tokens measured predicted error".split(), box=None)
    rows = []
    for size, is_lora, recomputes, parts, length, trained, gib in MEASURED:
        program = {"size": size, "is_lora": is_lora, "recomputes": recomputes}
        program |= {"parts": parts, "length": length}
        found = rehearse(program)
        if found["trained"] != trained:
            raise ValueError(f"{found['trained']:,} parameters are trained, not {trained:,}")
        peak = found["peak_bytes"] / GIB
        error = 100 * (peak / gib - 1)
        rows.append({**program, "gib": gib, "virtual_gib": round(peak, 4), "percent": error})
        method = f"{'LoRA' if is_lora else 'full'}{', recomputed' if recomputes else ''}"
        table.add_row(size, method, str(length), f"{gib:.3f}", f"{peak:.3f}", f"{error:+.2f} %")
    Console().print(table)
    worst = max(abs(row["percent"]) for row in rows)
    print(bar_text(f"each within {BAR_PERCENT:g} %: {worst:.2f} %", worst <= BAR_PERCENT))
    write_figures("fine-tuning", rows, gpu=GPU)
    return 0 if worst <= BAR_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
