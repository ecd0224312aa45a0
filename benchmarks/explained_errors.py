"""Measure what explaining out-of-memory errors costs a rehearsal that has none.

A step of a small transformer, whose operators take the host longest in proportion, with and without
noting the lines that make each block. The two alternate in one process; the rival is the same step
without notes. A rehearsal with a summary looks up these lines anyway; one with `--quiet` does not.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

import anyrig.virtual
from workloads.figures import bar_text, write_figures

WIDTH, LAYERS, STEPS, ROUNDS = 64, 4, 3, 40
# With the summary, and with --quiet.
BARS = {"with a summary": 1.03, "--quiet": 1.08}


@dataclass(frozen=True)
class Row:
    """The processor time of a step."""

    rehearsal: str
    noted_seconds: float
    seconds: float
    ratio: float
    holds: bool


def measure(*, with_summary: bool) -> tuple[float, float]:
    """Return the least processor time of a step with notes, and without."""
    import torch
    from torch import nn

    from anyrig.rehearsal.refusal_watch import RefusalWatch
    from anyrig.rehearsal.watching import Watch

    watching = Watch()
    if with_summary:
        watching.start()
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 64, WIDTH).cuda()

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for notes in (True, False):
            watch = RefusalWatch()
            watch.start()
            if not notes:
                watch.stop()
            step()
            began = time.process_time()
            for _ in range(STEPS):
                step()
            seconds[notes].append((time.process_time() - began) / STEPS)
            watch.stop()
    watching.stop()
    spread = {notes: statistics.median(each) / min(each) for notes, each in seconds.items()}
    sys.stderr.write(f"median of the least: {spread[True]:.2f} and {spread[False]:.2f}\n")
    return min(seconds[True]), min(seconds[False])


def main() -> None:
    anyrig.virtual.install("A100-40GB")
    rows = []
    for name, bar in BARS.items():
        noted, plain = measure(with_summary=name == "with a summary")
        rows.append(Row(name, noted, plain, noted / plain, noted <= bar * plain))
    table = Table("rehearsal", "with notes", "without", "ratio", "bar")
    for row in rows:
        times = [f"{1e3 * each:.2f} ms" for each in (row.noted_seconds, row.seconds)]
        bar = bar_text(f"{BARS[row.rehearsal]:g}", row.holds)
        table.add_row(row.rehearsal, *times, f"{row.ratio:.3f}", bar)
    Console().print(table)
    write_figures("explained_errors", [asdict(row) for row in rows])
    sys.exit(int(not all(row.holds for row in rows)))


if __name__ == "__main__":
    main()
