"""Measure the overhead of a virtual GPU: a training step on `cuda:0` against the plain CPU.

Each process runs one thread and alternates between the two kinds of steps, so that load on the
machine affects both alike, and takes the medians of many steps. The measurement is repeated in
several processes, one after the other, because the placement of a process's memory and threads
changes the ratio by a few percent. Prints the median, lowest and highest ratio of the processes
and the bar for the median, and writes them to `results`.
"""

from __future__ import annotations

import copy
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from anyrig.virtual import install
from workloads.figures import bar_text, write_figures
from workloads.small_networks import convolutional, perceptron

BATCH = 64
CLASSES = 10
PROCESSES = 7
BARS = {"perceptron 30x128": 1.08, "convolutional": 1.02, "transformer": 1.05}


class Transformer(nn.Module):
    def __init__(self, words: int = 1000, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, layers)
        self.classes = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.layers(self.embedding(x)).mean(1))


def training_step(model: nn.Module, x: Tensor, device: str) -> Callable[[], None]:
    model, x = copy.deepcopy(model).to(device), x.to(device)
    y = torch.randint(CLASSES, (len(x),)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


@dataclass(frozen=True)
class Medians:
    """The median wall and processor times of one model's training step, in milliseconds."""

    cpu_ms: float
    virtual_ms: float
    cpu_processor_ms: float
    virtual_processor_ms: float


@dataclass(frozen=True)
class Row:
    """One model's medians over all processes, and its ratios of virtual GPU to CPU.

    The ratios are of wall time, except for `processor_ratio`.
    """

    model: str
    medians: Medians
    ratio: float
    lowest_ratio: float
    highest_ratio: float
    processor_ratio: float
    bar: float
    holds: bool


def milliseconds(step: Callable[[], None]) -> tuple[float, float]:
    """Run `step`; return its wall time and its processor time in milliseconds."""
    start, processor_start = time.perf_counter(), time.process_time()
    step()
    return 1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - processor_start)


def compare(model: nn.Module, x: Tensor, steps: int) -> Medians:
    plain = training_step(model, x, "cpu")
    virtual = training_step(model, x, "cuda:0")
    for _ in range(5):
        plain()
        virtual()
    readings = [(*milliseconds(plain), *milliseconds(virtual)) for _ in range(steps)]
    cpu_ms, cpu_processor_ms, virtual_ms, virtual_processor_ms = map(
        statistics.median, zip(*readings, strict=True)
    )
    return Medians(cpu_ms, virtual_ms, cpu_processor_ms, virtual_processor_ms)


def measure(_process: int) -> dict[str, Medians]:
    """Compare the two kinds of steps for each model. Call once in a new process."""
    torch.set_num_threads(1)
    install("1xA100-80GB")
    torch.manual_seed(0)
    medians = (
        compare(perceptron(30, 128, CLASSES), torch.randn(BATCH, 128), 400),
        compare(convolutional(CLASSES), torch.randn(16, 3, 32, 32), 400),
        compare(Transformer(), torch.randint(1000, (16, 32)), 120),
    )
    return dict(zip(BARS, medians, strict=True))


def summarize(model: str, medians: list[Medians]) -> Row:
    """Return the row of `model` from the medians of each process."""
    ratios = [process.virtual_ms / process.cpu_ms for process in medians]
    ratio, bar = statistics.median(ratios), BARS[model]
    columns = zip(*map(astuple, medians), strict=True)
    return Row(
        model,
        Medians(*(statistics.median(column) for column in columns)),
        ratio,
        min(ratios),
        max(ratios),
        statistics.median(
            process.virtual_processor_ms / process.cpu_processor_ms for process in medians
        ),
        bar,
        ratio <= bar,
    )


def report(rows: list[Row]) -> None:
    table = Table(title="training step on a virtual GPU against the plain CPU, one thread")
    headings = ("model", "cpu ms", "virtual ms", "ratio", "range", "processor ratio", "bar")
    for heading in headings:
        is_name = heading == "model"
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=is_name)
    for row in rows:
        table.add_row(
            row.model,
            f"{row.medians.cpu_ms:.2f}",
            f"{row.medians.virtual_ms:.2f}",
            f"{row.ratio:.3f}",
            f"{row.lowest_ratio:.2f} to {row.highest_ratio:.2f}",
            f"{row.processor_ratio:.3f}",
            bar_text(str(row.bar), row.holds),
        )
    Console().print(table)
    write_figures("virtual_overhead", [asdict(row) for row in rows], processes=PROCESSES)


def main() -> int:
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        processes = pool.imap(measure, range(PROCESSES))
        medians = list(track(processes, "processes", total=PROCESSES))
    rows = [summarize(model, [process[model] for process in medians]) for model in BARS]
    report(rows)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
