"""Measure what watching for hazards costs: a training step on a virtual GPU, watched and not.

The model is a transformer with four layers. A watched step may take 1.1 times the processor time of
a step that is not watched. Both take turns in one process; the figures are medians over the turns.
The search for models and optimizers at the first watched step of an optimizer is reported apart: it
takes the same time in every program, once.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from anyrig import virtual
from anyrig.hazards import watch_hazards
from workloads.figures import bar_text, write_figures

TURNS, STEPS = 9, 4
BAR = 1.1
# The width of the model, samples, and tokens of a sample.
SIZES = {"small": (128, 8, 64), "medium": (384, 8, 64)}


def make_step(width: int, samples: int, tokens: int) -> Callable[[], None]:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(samples, tokens, width, device="cuda")

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds_of(step: Callable[[], None], count: int) -> float:
    started = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - started) / count


def main() -> int:
    torch.set_num_threads(1)  # threads that wait for each other take processor time
    virtual.install("A100-80GB")
    rows: list[dict[str, Any]] = []
    for name, size in SIZES.items():
        step = make_step(*size)
        seconds_of(step, 2)
        plain, watched, first = [], [], []
        for _ in range(TURNS):
            plain.append(seconds_of(step, STEPS))
            with watch_hazards() as hazards:
                first.append(seconds_of(step, 1))
                watched.append(seconds_of(step, STEPS))
            assert not hazards
        ratio = statistics.median(one / bare for one, bare in zip(watched, plain, strict=True))
        rows.append(
            {
                "model": name,
                "step_seconds": statistics.median(plain),
                "ratio": ratio,
                "first_step_seconds": statistics.median(first) - statistics.median(watched),
                "holds": ratio <= BAR,
            }
        )
        bar = bar_text(f"at most {BAR}", ratio <= BAR)
        print(f"{name}: a step of {rows[-1]['step_seconds']:.4f} s, watched {ratio:.3f}, {bar}")
        print(f"  the first watched step takes {rows[-1]['first_step_seconds']:.3f} s more")
    write_figures("hazards", rows)
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
