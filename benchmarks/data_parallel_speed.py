"""Measure the speed of data parallelism against one device and against stock `nn.DataParallel`.

(a) On the virtual clock, shape-only, with 1, 2, 4 and 8 A100s of 80 GB and NVLink: the speed-up of
    a training step, including the optimizer, over the bare module on one device. The bars apply to
    float32. With autocast to bfloat16, there is less computation to overlap the copies with.
(b) In wall time, with data, for small models on two and four virtual GPUs: anyrig may take at most
    as long as stock. The steps of both alternate in one process.
"""

from __future__ import annotations

import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from workloads.figures import bar_text, write_figures
from workloads.training import Training, rehearse

RIG = "8xA100-80GB"
DEVICES = (2, 4, 8)
BATCH = {"language": 64, "images": 256}
SPEED_UP_BARS = {"language": (1.85, 3.4, 6.0), "images": (1.9, 3.6, 6.8)}
WALL_BAR = 1.0
WALL_STEPS = 40


def measure_speed_up(model: str, autocast: bool) -> list[dict[str, Any]]:
    bare = Training(model, "bare", BATCH[model], autocast=autocast)
    several = [
        replace(bare, engine=engine, devices=devices)
        for devices in DEVICES
        for engine in ("anyrig", "stock")
    ]
    rows = rehearse(RIG, [bare, *several])
    bars = dict(zip(DEVICES, SPEED_UP_BARS[model], strict=True))
    for row in rows:
        if "error" not in row:
            row["speed_up"] = rows[0]["step_seconds"] / row["step_seconds"]
        if row["engine"] == "anyrig" and not autocast:
            row["bar"] = bars[row["devices"]]
            row["holds"] = row.get("speed_up", 0.0) >= row["bar"]
    return rows


def show_speed_up(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "model", "dtype", "devices", "engine", "step ms", "speed-up", "peak of lead, others", "bar"
    )
    table.title = "step time on the virtual clock"
    for row in rows:
        dtype = "bfloat16" if row["autocast"] else "float32"
        names = row["model"], dtype, str(row["devices"]), row["engine"]
        if "error" in row:
            table.add_row(*names, row["error"])
            continue
        lead, *others = (peak / 2**30 for peak in row["peak_bytes"])
        table.add_row(
            *names,
            f"{1e3 * row['step_seconds']:.1f}",
            f"{row['speed_up']:.2f}",
            f"{lead:.1f}, {max(others, default=0):.1f} GiB",
            bar_text(f">= {row['bar']}", row["holds"]) if "bar" in row else "",
        )
    return table


def wall_models() -> dict[str, tuple[Any, Any, Any]]:
    import torch

    from workloads.language_model import LanguageModel, LanguageModelSize
    from workloads.small_networks import convolutional, perceptron

    size = LanguageModelSize(words=1000, width=128, layers=4, heads=4, tokens=32)
    words = torch.randint(1000, (16, 32))
    classes = torch.randint(10, (64,))
    return {
        "perceptron 20x256": (perceptron(20, 256, 10), torch.randn(64, 256), classes),
        "convolutional": (convolutional(10), torch.randn(16, 3, 32, 32), classes[:16]),
        "language, small": (LanguageModel(size), words, words.clone()),
    }


def measure_wall(devices: int) -> list[dict[str, Any]]:
    """Return one row per model and engine. Call once in a new process."""
    from anyrig.virtual import install

    install(f"{devices}xA100-80GB")

    import torch
    from torch import nn

    import anyrig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rig = anyrig.Rig.parse("all")

    def training_step(engine: str, module: Any, x: Any, y: Any) -> Callable[[], None]:
        module = copy.deepcopy(module).cuda()
        criterion = nn.CrossEntropyLoss()
        if engine == "stock":
            model = nn.DataParallel(module)
        else:
            model = anyrig.spread(module, rig, loss=criterion if engine == "loss=" else None)
        optimizer = torch.optim.SGD(module.parameters(), 0.01)
        x, y = x.cuda(), y.cuda()

        def step() -> None:
            optimizer.zero_grad()
            loss = model(x, target=y) if engine == "loss=" else criterion(model(x), y)
            loss.backward()
            optimizer.step()

        return step

    rows = []
    for name, (module, x, y) in wall_models().items():
        steps = {
            engine: training_step(engine, module, x, y)
            for engine in ("stock", "loss outside", "loss=")
        }
        readings: dict[str, list[tuple[float, float]]] = {engine: [] for engine in steps}
        for turn in range(WALL_STEPS + 3):
            for engine, step in steps.items():
                start, processor_start = time.perf_counter(), time.process_time()
                step()
                reading = time.perf_counter() - start, time.process_time() - processor_start
                if turn >= 3:
                    readings[engine].append(reading)
        seconds = {
            engine: tuple(map(statistics.median, zip(*values, strict=True)))
            for engine, values in readings.items()
        }
        for engine in ("loss outside", "loss="):
            wall, processor = (
                ours / stock for ours, stock in zip(seconds[engine], seconds["stock"], strict=True)
            )
            rows.append(
                {
                    "model": name,
                    "devices": devices,
                    "engine": f"anyrig, {engine}",
                    "stock_seconds": seconds["stock"][0],
                    "step_seconds": seconds[engine][0],
                    "ratio": wall,
                    "processor_ratio": processor,
                    "bar": WALL_BAR,
                    "holds": wall <= WALL_BAR,
                }
            )
    return rows


def measure_wall_apart(devices: int) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, str(devices)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300)
    return json.loads(finished.stdout.splitlines()[-1])


def show_wall(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "model", "GPUs", "engine", "stock ms", "step ms", "ratio", "processor ratio", "bar"
    )
    table.title = "wall time of a step, virtual GPUs, one thread per replica"
    for row in rows:
        table.add_row(
            row["model"],
            str(row["devices"]),
            row["engine"],
            f"{1e3 * row['stock_seconds']:.2f}",
            f"{1e3 * row['step_seconds']:.2f}",
            f"{row['ratio']:.3f}",
            f"{row['processor_ratio']:.3f}",
            bar_text(str(row["bar"]), row["holds"]),
        )
    return table


def main() -> int:
    if len(sys.argv) == 2:
        print(json.dumps(measure_wall(int(sys.argv[1]))))
        return 0
    clock = [
        row for model in BATCH for half in (False, True) for row in measure_speed_up(model, half)
    ]
    Console().print(show_speed_up(clock))
    wall = [row for devices in (2, 4) for row in measure_wall_apart(devices)]
    Console().print(show_wall(wall))
    write_figures("data_parallel_speed", [*clock, *wall])
    return 0 if all(row.get("holds", True) for row in (*clock, *wall)) else 1


if __name__ == "__main__":
    sys.exit(main())
