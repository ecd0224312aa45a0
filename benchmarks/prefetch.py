"""Measure the overhead of prefetch() on the CPU, and its overlap of copies on an accelerator.

(a) On the CPU, a loop over a loader with prefetch may take at most 1.01 of the same loop without.
(b) On an accelerator, in a step whose copy and computation take equally long, prefetch may take at
    most 1.1 of the longer one. The plain loop, which copies and then computes, takes about 2.

The compared loops take turns in one process, and the figures are medians. Times on the accelerator
come from its events, which read the virtual clock on a virtual GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import anyrig

RESULTS = Path(__file__).parent / "results"
CPU_BAR = 1.01
OVERLAP_BAR = 1.1


@dataclass(frozen=True)
class Row:
    """The time of one loop and of the loop that it is compared with, in milliseconds per step."""

    loop: str
    step_ms: float
    compared_with: str
    compared_ms: float
    bar: float | None

    @property
    def ratio(self) -> float:
        return self.step_ms / self.compared_ms

    @property
    def holds(self) -> bool:
        return self.bar is None or self.ratio <= self.bar


class CpuBatches:
    """A loader of `steps` batches in pageable or pinned memory, created in advance."""

    def __init__(self, steps: int, batch_bytes: int, pinned: bool) -> None:
        distinct = [torch.ones(batch_bytes // 4) for _ in range(4)]
        self._batches = [batch.pin_memory() if pinned else batch for batch in distinct]
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self._batches[step % len(self._batches)] for step in range(self._steps))


def measure_cpu(repeats: int) -> list[Row]:
    data = torch.utils.data.TensorDataset(torch.randn(2048, 64), torch.arange(2048))
    loader = torch.utils.data.DataLoader(data, batch_size=64)
    loops = {"plain": loader, "prefetch": anyrig.prefetch(loader, "cpu")}
    weight = torch.randn(64, 64)

    def run(batches: Iterable[list[torch.Tensor]]) -> float:
        # Processor time, because this loop never waits and other programs hardly affect it.
        start = time.process_time()
        for inputs, _ in batches:
            inputs @ weight
        return 1e3 * (time.process_time() - start) / len(loader)

    step_ms = interleave(
        {name: lambda b=batches: run(b) for name, batches in loops.items()}, repeats
    )
    return [Row("prefetch, CPU", step_ms["prefetch"], "plain loop", step_ms["plain"], CPU_BAR)]


def measure_overlap(
    device: torch.device, repeats: int, steps: int, batch_bytes: int, side: int
) -> list[Row]:
    rows = []
    for pinned in (True, False):
        memory = "pinned" if pinned else "pageable"
        batches = CpuBatches(steps, batch_bytes, pinned)
        source = next(iter(batches))
        factor = torch.randn(side, side, device=device)
        copy_ms = device_ms(
            device, lambda s=source: anyrig.move(s, device, non_blocking=True), repeats
        )
        one_ms = device_ms(device, lambda f=factor: f @ f, repeats)
        products = max(1, round(copy_ms / one_ms))

        def compute(factor: torch.Tensor = factor, products: int = products) -> None:
            for _ in range(products):
                factor @ factor

        compute_ms = device_ms(device, compute, repeats)
        longer_ms = max(copy_ms, compute_ms)
        longer = "longer of the two"
        ahead = anyrig.prefetch(batches, device)

        def plain(batches: CpuBatches = batches, compute: Callable[[], None] = compute) -> None:
            for batch in batches:
                batch.to(device)
                compute()

        def prefetched(
            ahead: Iterable[torch.Tensor] = ahead, compute: Callable[[], None] = compute
        ) -> None:
            for _ in ahead:
                compute()

        step_ms = interleave(
            {
                name: lambda loop=loop: time_on_device(device, loop) / steps
                for name, loop in {"plain": plain, "prefetch": prefetched}.items()
            },
            repeats,
        )
        rows.append(Row(f"copy alone, {memory}", copy_ms, longer, longer_ms, None))
        rows.append(Row("computation alone", compute_ms, longer, longer_ms, None))
        rows.append(Row(f"plain, {memory}", step_ms["plain"], longer, longer_ms, None))
        rows.append(Row(f"prefetch, {memory}", step_ms["prefetch"], longer, longer_ms, OVERLAP_BAR))
    return rows


def interleave(loops: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Run the loops in turns, after one turn of warm-up; return the median reading of each."""
    readings: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(repeats + 1):
        order = list(loops) if turn % 2 else list(reversed(loops))
        for name in order:
            reading = loops[name]()
            if turn:
                readings[name].append(reading)
    return {name: statistics.median(values) for name, values in readings.items()}


def device_ms(device: torch.device, action: Callable[[], object], repeats: int) -> float:
    return interleave({"": lambda: time_on_device(device, action)}, repeats)[""]


def time_on_device(device: torch.device, action: Callable[[], object]) -> float:
    """Return the time of `action` on the current stream of `device`, in milliseconds."""
    start, end = (torch.Event(device=device, enable_timing=True) for _ in range(2))
    torch.accelerator.synchronize(device)
    start.record(torch.accelerator.current_stream(device))
    action()
    end.record(torch.accelerator.current_stream(device))
    torch.accelerator.synchronize(device)
    return start.elapsed_time(end)


def report(rows: list[Row], device: str) -> dict[str, object]:
    table = Table(title=f"prefetch on {device}")
    for heading in ("loop", "ms/step", "compared with", "ms", "ratio", "bar"):
        table.add_column(
            heading, justify="left" if heading in ("loop", "compared with") else "right"
        )
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar} {'holds' if row.holds else 'MISSED'}"
        table.add_row(
            row.loop,
            f"{row.step_ms:.4f}",
            row.compared_with,
            f"{row.compared_ms:.4f}",
            f"{row.ratio:.3f}",
            bar,
        )
    Console().print(table)
    return {
        "benchmark": "prefetch",
        "gpu": device,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "anyrig": anyrig.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "rows": [asdict(row) | {"ratio": row.ratio, "holds": row.holds} for row in rows],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--cpu-repeats", type=int, default=201)
    parser.add_argument("--steps", type=int, default=30, help="batches per loop on the device")
    parser.add_argument("--batch-mib", type=int, default=64)
    parser.add_argument("--side", type=int, default=2048, help="rows of the multiplied matrices")
    options = parser.parse_args()

    lead = anyrig.Rig.detect().lead
    rows = measure_cpu(options.cpu_repeats)
    if lead.kind != "cpu":
        rows += measure_overlap(
            lead.torch_device,
            options.repeats,
            options.steps,
            options.batch_mib * 2**20,
            options.side,
        )
    else:
        print("no accelerator found: the overlap of copy and computation is not measured")
    result = report(rows, lead.name)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"prefetch-{'-'.join(re.findall('[a-z0-9]+', lead.name.lower()))}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {path}")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
