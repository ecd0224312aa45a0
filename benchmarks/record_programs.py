"""Write the measured programs that the clock is fitted to and judged by, with their work.

`python benchmarks/record_programs.py inference LINES` takes the lines that
`clock/inference_programs.py` printed, `training LINES` and `grouped LINES` those of
`clock/training_programs.py`, and `torchvision LINES` those of `clock/torchvision_programs.py`. The
files go to ``clock/records``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from clock.recorded_programs import FOLDER, write_programs

TIMM = "timm (huggingface/pytorch-image-models, aa4b5850, Apache-2.0), folder results"
ABOUT = {
    "inference": {
        "source": f"{TIMM}: benchmark-infer-amp of RTX 4090, RTX 3090 and RTX PRO 6000 Max-Q",
        "date": "2024-09-04 (torch 2.4.0) and 2026-01-06 (torch 2.9.1)",
    },
    "training": {
        "source": f"{TIMM}: benchmark-train-amp-{{nchw,nhwc}}-pt112-cu113-rtx3090.csv",
        "date": "2022-07-27 (torch 1.12, cuDNN 8.3)",
    },
    "grouped": {
        "source": f"{TIMM}: benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv, grouped convolutions",
        "date": "2022-07-27 (torch 1.12, cuDNN 8.3)",
    },
    "torchvision": {
        "source": "MatrixSP/pytorch-gpu-benchmark (7aca8438, MIT), folder results",
        "date": "2025-07 (RTX 5090: torch 2.7.1, cuDNN 9.7), 2024-02 (RTX 4060 Ti: cuDNN 8.9)",
    },
}


def distinct(programs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `programs` without those whose work is that of an earlier one, by the model's name.

    Models that differ in their weights only count once.
    """
    by_work: dict[str, dict[str, Any]] = {}
    for program in sorted(programs, key=lambda program: str(program["model"])):
        work = json.dumps([program["layout"], program["counts"], program["columns"]])
        by_work.setdefault(work, program)
    return list(by_work.values())


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in ABOUT:
        print(f"use: python benchmarks/record_programs.py {{{','.join(ABOUT)}}} LINES")
        return 0
    name, lines = sys.argv[1], Path(sys.argv[2]).read_text().splitlines()
    programs = [json.loads(line) for line in lines if line.startswith("{")]
    if name == "grouped":
        programs = distinct(programs)
    write_programs(name, ABOUT[name], programs)
    print(f"{len(programs)} programs written to {FOLDER / name}.json.gz")
    return 0


if __name__ == "__main__":
    sys.exit(main())
