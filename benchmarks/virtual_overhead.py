"""What a virtual GPU costs: the time of a training step on `cuda:0` against the plain CPU.

One process, one thread, steps of both kinds in turn, so that both meet the same machine, and so
many that a spell in which it is busy with something else does not decide. Prints the medians, their
ratio, and the bar that the ratio is to stay under; writes them to `results`.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from anyrig.virtual import install
from workloads.figures import write_figures
from workloads.small_networks import convolutional, perceptron

BATCH = 64
CLASSES = 10


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
class Row:
    """Medians of one model's training step, in milliseconds: by the clock and of processor time."""

    model: str
    cpu_ms: float
    virtual_ms: float
    cpu_processor_ms: float
    virtual_processor_ms: float
    bar: float

    @property
    def ratio(self) -> float:
        return self.virtual_ms / self.cpu_ms

    @property
    def processor_ratio(self) -> float:
        return self.virtual_processor_ms / self.cpu_processor_ms

    @property
    def holds(self) -> bool:
        return self.ratio <= self.bar


def milliseconds(step: Callable[[], None]) -> tuple[float, float]:
    """Run `step`; return the time it took, and the processor time, which other programs spare."""
    start, processor_start = time.perf_counter(), time.process_time()
    step()
    return 1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - processor_start)


def compare(name: str, bar: float, model: nn.Module, x: Tensor, steps: int) -> Row:
    plain = training_step(model, x, "cpu")
    virtual = training_step(model, x, "cuda:0")
    for _ in range(5):
        plain()
        virtual()
    turns = [(*milliseconds(plain), *milliseconds(virtual)) for _ in range(steps)]
    cpu, cpu_processor, on_virtual, virtual_processor = map(
        statistics.median, zip(*turns, strict=True)
    )
    return Row(name, cpu, on_virtual, cpu_processor, virtual_processor, bar)


def report(rows: list[Row]) -> None:
    table = Table(title="a training step on a virtual GPU against the plain CPU, one thread")
    for heading in ("model", "cpu ms", "virtual ms", "ratio", "ratio of processor time", "bar"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        table.add_row(
            row.model,
            f"{row.cpu_ms:.2f}",
            f"{row.virtual_ms:.2f}",
            f"{row.ratio:.3f}",
            f"{row.processor_ratio:.3f}",
            f"{row.bar} {'holds' if row.holds else 'MISSED'}",
        )
    Console().print(table)
    kept = ("ratio", "processor_ratio", "holds")
    rows_written = [asdict(row) | {name: getattr(row, name) for name in kept} for row in rows]
    write_figures("virtual_overhead", rows_written)


def main() -> int:
    torch.set_num_threads(1)
    install("1xA100-80GB")
    torch.manual_seed(0)
    rows = [
        compare(
            "perceptron 30x128", 1.25, perceptron(30, 128, CLASSES), torch.randn(BATCH, 128), 400
        ),
        compare("convolutional", 1.05, convolutional(CLASSES), torch.randn(16, 3, 32, 32), 400),
        compare("transformer", 1.15, Transformer(), torch.randint(1000, (16, 32)), 120),
    ]
    report(rows)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
