"""Compare the virtual clock with published figures of real GPUs.

The workloads are training ResNet-50 v1.5 as in NVIDIA's DeepLearningExamples
(ConvNets/resnet50v1.5, container 21.03), and a matrix product. The clock was fitted to neither; its
coefficients come from `fit_clock.py`. The virtual steps have no data loading and no gradient
scaling. The figures go to `results`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from anyrig.virtual import clock, install
from workloads.figures import write_figures

STEPS = 3


class Bottleneck(nn.Module):
    """A residual block of a 1x1, a 3x3 (with the stride) and a 1x1 convolution."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *normed(channels, width, 1),
            nn.ReLU(inplace=True),
            *normed(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *normed(width, 4 * width, 1),
        )
        same = stride == 1 and channels == 4 * width
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*normed(channels, 4 * width, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def normed(channels: int, width: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(width)


def resnet50() -> nn.Module:
    def layers() -> Iterator[nn.Module]:
        yield from normed(3, 64, 7, 2)
        yield nn.ReLU(inplace=True)
        yield nn.MaxPool2d(3, 2, 1)
        channels = 64
        for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for index in range(count):
                yield Bottleneck(channels, width, 2 if index == 0 and width > 64 else 1)
                channels = 4 * width
        yield from (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))

    return nn.Sequential(*layers())


def images_per_second(batch: int, half: bool) -> float:
    """Return the speed of training ResNet-50 on 224 x 224 images with SGD and momentum."""
    torch.backends.cuda.matmul.allow_tf32 = True
    order = torch.channels_last if half else torch.contiguous_format
    model = resnet50().cuda().to(memory_format=order)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.875, foreach=True)
    x = torch.empty(batch, 3, 224, 224, device="cuda").to(memory_format=order)
    y = torch.empty(batch, dtype=torch.long, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.half, enabled=half):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return batch / seconds(step)


def product_tflops(size: int) -> float:
    x = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
    return 2 * size**3 / seconds(lambda: x @ x) / 1e12


def seconds(step: Callable[[], object]) -> float:
    """Return the virtual time of one step, after one step of warm-up."""
    step()
    torch.cuda.synchronize()
    before = clock().done_seconds
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (clock().done_seconds - before) / STEPS


@dataclass(frozen=True)
class Figure:
    """A published figure, and the function that measures it on the virtual clock."""

    what: str
    rig: str
    published: float
    unit: str
    run: Callable[[], float]


FIGURES = (
    Figure("product of 8192, bfloat16", "H200-SXM", 784, "TFLOP/s", lambda: product_tflops(8192)),
    Figure(
        "ResNet-50, mixed, 256", "A100-80GB", 2470, "img/s", lambda: images_per_second(256, True)
    ),
    Figure(
        "ResNet-50, TF32, 256", "A100-80GB", 938, "img/s", lambda: images_per_second(256, False)
    ),
    Figure(
        "ResNet-50, mixed, 256", "V100-32GB", 1156, "img/s", lambda: images_per_second(256, True)
    ),
    Figure(
        "ResNet-50, float32, 128", "V100-32GB", 356, "img/s", lambda: images_per_second(128, False)
    ),
)


def measure_apart(index: int) -> float:
    """Measure a figure on the virtual clock in a new process, since a process has only one rig."""
    command = [sys.executable, __file__, str(index)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return float(finished.stdout)


def report(values: list[float]) -> None:
    table = Table(title="the virtual clock against published figures")
    for heading in ("workload", "GPU", "published", "virtual", "unit", "virtual / published"):
        table.add_column(heading, justify="left" if heading in ("workload", "GPU") else "right")
    rows = []
    for figure, value in zip(FIGURES, values, strict=True):
        ratio = value / figure.published
        cells = (f"{figure.published:g}", f"{value:.0f}", figure.unit, f"{ratio:.2f}")
        table.add_row(figure.what, figure.rig, *cells)
        facts = {name: fact for name, fact in asdict(figure).items() if name != "run"}
        rows.append(facts | {"virtual": value, "ratio": ratio})
    Console().print(table)
    write_figures("virtual_clock", rows)


def main() -> int:
    if len(sys.argv) > 1:
        figure = FIGURES[int(sys.argv[1])]
        install(figure.rig, shape_only=True, without_kernels=True)
        print(figure.run())
        return 0
    report([measure_apart(index) for index in range(len(FIGURES))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
