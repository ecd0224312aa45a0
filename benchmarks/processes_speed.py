"""Measure replicas in processes on CPUs against hand-written DDP by torchrun, and one process.

    one line      anyrig.spread(net, loss=criterion, plan=Replicas(processes=2)), in a plain script
    DDP           the same model, loss and optimizer in two ranks, each with its half of the batch
    one process   the module itself, with all threads

The workloads are those of `data_parallel_speed.py` (b). Every rival has as many threads in all. The
rivals take turns, round by round, each in processes of its own, so that the machine's load is
shared; the ratio is that of the medians of all rounds. Bar: at most 0.95 of DDP's step.

Where other programs use the machine, wall times say little; the processor time of a step, over all
processes of a rival, says more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from data_parallel_speed import wall_models
from workloads.figures import bar_text, write_figures

PROCESSES, ROUNDS, WARM_UP, STEPS = 2, 5, 5, 30
BAR = 0.95
RIVALS = ("one line", "DDP", "one process")


def measure(rival: str, name: str) -> tuple[float, float]:
    """Return the median seconds of a step, and its processor seconds, over all processes.

    Runs in a process of its own, or in each rank.
    """
    import torch
    from torch import nn

    import anyrig

    torch.manual_seed(0)
    torch.set_num_threads(PROCESSES if rival == "one process" else 1)
    module, x, y = wall_models()[name]
    # Each step has the samples of one GPU for each process.
    x, y = (torch.cat([each] * PROCESSES) for each in (x, y))
    criterion: Any = nn.CrossEntropyLoss()
    if rival == "DDP":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        x, y = (each.chunk(PROCESSES)[rank].contiguous() for each in (x, y))
        model: Any = nn.parallel.DistributedDataParallel(module)
    elif rival == "one line":
        torch.set_num_threads(PROCESSES)
        model = anyrig.spread(
            module, "cpu", loss=criterion, plan=anyrig.Replicas(processes=PROCESSES)
        )
    else:
        model = module
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    seconds = []
    before = 0.0
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            before = processor_seconds()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = model(x, target=y) if rival == "one line" else criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - begin)
    used = torch.tensor(processor_seconds() - before)
    if rival == "DDP":
        torch.distributed.all_reduce(used)
    return statistics.median(seconds), float(used) / STEPS


def processor_seconds() -> float:
    """Return the CPU time of this process and of all its descendants, on Linux."""
    used, pending = time.process_time(), [os.getpid()]
    while pending:
        for task in Path(f"/proc/{pending.pop()}/task").iterdir():
            for child in (task / "children").read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                pending.append(int(child))
    return used


def measure_apart(rival: str, name: str) -> tuple[float, float]:
    command = [sys.executable, __file__, "--rival", rival, "--model", name]
    if rival == "DDP":
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
        command[1:1] = launcher
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, timeout=600, env=environment, text=True
    )
    wall, processor = json.loads(run.stdout.splitlines()[-1])
    return wall, processor


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rival", choices=RIVALS)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    if asked.rival:
        found = measure(asked.rival, asked.model)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(found))
        return 0
    rows = []
    for name in wall_models():
        readings: dict[str, list[tuple[float, float]]] = {rival: [] for rival in RIVALS}
        loads = []
        for _ in range(asked.rounds):
            loads.append(os.getloadavg()[0])
            for rival in RIVALS:
                readings[rival].append(measure_apart(rival, name))
        seconds, processor = (
            {rival: statistics.median(row[i] for row in each) for rival, each in readings.items()}
            for i in (0, 1)
        )
        ratio = seconds["one line"] / seconds["DDP"]
        rows.append(
            {
                "model": name,
                "processes": PROCESSES,
                "seconds": seconds,
                "ratio": ratio,
                "processor_seconds": processor,
                "processor_ratio": processor["one line"] / processor["DDP"],
                "load": statistics.median(loads),
                "bar": BAR,
                "holds": ratio <= BAR,
            }
        )
    table = Table(
        "model", *(f"{rival} ms" for rival in RIVALS), "ratio to DDP", "of CPU", "load", "bar"
    )
    for row in rows:
        times = (f"{1e3 * row['seconds'][rival]:.2f}" for rival in RIVALS)
        figures = f"{row['ratio']:.3f}", f"{row['processor_ratio']:.3f}", f"{row['load']:.1f}"
        table.add_row(row["model"], *times, *figures, bar_text(f"<= {BAR}", row["holds"]))
    Console().print(table)
    write_figures(Path(__file__).stem, rows)
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
