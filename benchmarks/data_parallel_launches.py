"""Compare a step of GPT-2 by one line, `nn.DataParallel` and DDP where the host limits it, or not.

    one line       anyrig.spread(net, rig, loss=criterion): a thread for each GPU
    DataParallel   stock: one interpreter, and new copies of the modules in each step
    DDP            hand-written, a process for each GPU; rank 0 stands for all (`--ranks`)

On the virtual clock, without data, with A100s of 80 GB and NVLink, in bfloat16 by autocast, with
AdamW. The small model has one sequence of 1,024 tokens for each GPU, so that the host's launches
take as long as the kernels; the large one has eight.

The clock counts operators and launches, and no Python between them. `DataParallel` makes a copy of
every module for every GPU in each step, in Python alone, so it is slower than shown.

Bars: the one line takes no longer than `DataParallel`. Its distance from DDP has none: that is what
a single interpreter costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import anyrig
from workloads.figures import bar_text, write_figures
from workloads.language_model import LanguageModel, LanguageModelSize

GPUS = (2, 4, 8)
RIVALS = ("one line", "DataParallel", "DDP")
TOKENS, STEPS = 1024, 6
BAR = 1.0


@dataclass(frozen=True)
class Workload:
    """A model, and how many sequences each GPU has."""

    size: LanguageModelSize
    sequences: int


WORKLOADS = {
    "GPT-2, 1 sequence": Workload(LanguageModelSize(50_257, 768, 12, 12, TOKENS), 1),
    "GPT-2 medium, 8 sequences": Workload(LanguageModelSize(50_257, 1024, 24, 16, TOKENS), 8),
}


def make_model(workload: Workload) -> LanguageModel:
    model = LanguageModel(workload.size)
    model.head.weight = model.embedding.weight
    return model


def train(rival: str, workload: Workload, gpus: int) -> None:
    """Train for a few steps. Runs within a rehearsal."""
    criterion = nn.CrossEntropyLoss()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    net = make_model(workload).cuda()
    if rival == "one line":
        model: Any = anyrig.spread(net, anyrig.Rig.detect(), loss=criterion)
    elif rival == "DataParallel":
        model = nn.DataParallel(net)
    else:
        torch.distributed.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(net, device_ids=[local])
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    count = workload.sequences * (1 if rival == "DDP" else gpus)
    x = torch.zeros(count, TOKENS, dtype=torch.long).pin_memory()
    y = x.clone().pin_memory()
    for _ in range(STEPS):
        optimizer.zero_grad()
        words, target = (each.cuda(non_blocking=True) for each in (x, y))
        with torch.autocast("cuda", torch.bfloat16):
            if rival == "one line":
                loss = model(words, target=target)
            else:
                loss = criterion(model(words), target)
        loss.backward()
        optimizer.step()


def measure(rival: str, name: str, gpus: int) -> dict[str, Any]:
    """Return the seconds of a step on the virtual clock, and the peak bytes of the GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "facts.json"
        flags = ["--rig", f"{gpus}xA100-80GB", "--shape-only", "--quiet", "--json", str(facts)]
        if rival == "DDP":
            flags += ["--ranks", str(gpus)]
        command = [sys.executable, "-m", "anyrig", "rehearse", *flags]
        program = [__file__, rival, name, str(gpus)]
        subprocess.run([*command, *program], check=True, stdout=subprocess.DEVNULL, timeout=900)
        found = json.loads(facts.read_text())
    peaks = [device["peak"]["total_bytes"] for device in found["devices"]]
    return {
        "workload": name,
        "gpus": gpus,
        "rival": rival,
        "step_milliseconds": round(1e3 * found["typical_step"]["seconds"], 2),
        "lead_peak_bytes": peaks[0],
        "largest_over_smallest_peak": round(max(peaks) / min(peaks), 2),
    }


def judge(rows: list[dict[str, Any]]) -> None:
    """Add each row's step over those of the rivals, and whether the one line's bar holds."""
    step = {(row["workload"], row["gpus"], row["rival"]): row["step_milliseconds"] for row in rows}
    for row in rows:
        for rival in RIVALS:
            over = row["step_milliseconds"] / step[row["workload"], row["gpus"], rival]
            row[f"over_{rival}"] = round(over, 3)
        if row["rival"] == "one line":
            row["holds"] = row["over_DataParallel"] <= BAR


def show(rows: list[dict[str, Any]]) -> None:
    columns = ("workload", "GPUs", "rival", "step ms", "over DDP", "lead's peak GiB", "max/min")
    table = Table(*columns, "bar", title="a step on the virtual clock")
    for row in rows:
        table.add_row(
            row["workload"],
            str(row["gpus"]),
            row["rival"],
            f"{row['step_milliseconds']:.2f}",
            f"{row['over_DDP']:.2f}",
            f"{row['lead_peak_bytes'] / 2**30:.2f}",
            f"{row['largest_over_smallest_peak']:.2f}",
            bar_text("≤ DataParallel", row["holds"]) if "holds" in row else "",
        )
    Console().print(table)


def main() -> int:
    if len(sys.argv) == 4:
        rival, name, gpus = sys.argv[1:]
        train(rival, WORKLOADS[name], int(gpus))
        return 0
    rows = [measure(rival, name, gpus) for name in WORKLOADS for gpus in GPUS for rival in RIVALS]
    judge(rows)
    show(rows)
    write_figures("data_parallel_launches", rows)
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
