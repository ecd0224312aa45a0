"""Measure a transformer of 69 billion parameters in shape-only mode: step time and host memory.

The workload is a training step with AdamW in bfloat16 on one virtual GPU of 700 GiB. The same step
on one A100 of 80 GB must run out of memory. Each runs in a process of its own. The figures go to
`results`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import anyrig
from workloads.figures import bar_text, write_figures

STEP_BAR_SECONDS = 2.0
HOST_BAR_BYTES = 2**30

# The sizes of Llama 2 70B (arXiv:2307.09288).
WIDTH, FEED_FORWARD, LAYERS, HEADS, WORDS = 8192, 28672, 80, 64, 32000
BATCH, LENGTH = 1, 2048


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        # Grouped-query attention: each of the 8 key and value heads serves 8 query heads.
        self.query, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(WIDTH, WIDTH // 8, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, FEED_FORWARD, bias=False) for _ in range(2))
        self.down = nn.Linear(FEED_FORWARD, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norms[0](x)
        q, k, v = (
            project(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        k, v = (heads.repeat_interleave(8, 1) for heads in (k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def train(rig: str, steps: int) -> dict[str, object]:
    """Train for `steps` steps on `rig`; return the figures. Call once in a new process."""
    from anyrig.virtual import install

    install(rig, shape_only=True)
    torch.set_default_dtype(torch.bfloat16)
    start = time.perf_counter()
    try:
        with torch.device("cuda"):
            model = Transformer()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters())
        seconds = [time.perf_counter() - start]
        words = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
        for _ in range(steps):
            start = time.perf_counter()
            logits = model(words)
            functional.cross_entropy(logits.flatten(0, 1), words.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - start)
    except torch.OutOfMemoryError as error:
        return {"rig": rig, "out_of_memory": str(error).split(" If reserved")[0]}
    return {
        "rig": rig,
        "parameters": parameters,
        "building_seconds": seconds[0],
        "first_step_seconds": seconds[1],
        "step_seconds": statistics.median(seconds[1:]),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "host_bytes": _peak_host_bytes(),
    }


def _peak_host_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train_apart(rig: str, steps: int) -> dict[str, object]:
    command = [sys.executable, __file__, rig, str(steps)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> int:
    large, small = train_apart("700GiB", 5), train_apart("1xA100-80GB", 1)
    fast = large["step_seconds"] < STEP_BAR_SECONDS
    slim = large["host_bytes"] < HOST_BAR_BYTES
    full = "out_of_memory" in small
    table = Table("quantity", "measured", "bar", title="AdamW on a transformer, shape-only")
    table.add_row("parameters", f"{large['parameters'] / 1e9:.1f}e9", "")
    table.add_row("GPU peak", anyrig.units.format_bytes(large["peak_bytes"]), "")
    table.add_row("step", f"{large['step_seconds']:.2f} s", bar_text("2 s", fast))
    host_bytes = anyrig.units.format_bytes(large["host_bytes"])
    table.add_row("host memory", host_bytes, bar_text("1 GiB", slim))
    table.add_row(
        "on 1xA100-80GB", "out of memory" if full else "it ran", bar_text("must not fit", full)
    )
    Console().print(table)
    write_figures("virtual_shape_only", [large, small])
    return 0 if fast and slim and full else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(train(sys.argv[1], int(sys.argv[2]))))
    else:
        sys.exit(main())
