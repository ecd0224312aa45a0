"""Measure FSDP2 over 64 ranks in shape-only mode: step time, host memory and bytes per rank.

PyTorch's `fake` process group lets one process act as one of 64 ranks. The workload trains the
transformer of `virtual_shape_only.py` (69 billion parameters): created on meta, sharded layer by
layer, computed in bfloat16, reduced in float32, with activation checkpointing, gradient clipping
and AdamW. It is sharded either by hand with `fully_shard`, or by the plan `anyrig.Shards()`,
which finds the layers. Each variant runs in a process of its own. The first step is reported
separately, because DTensor then derives the sharding of each operator. Times are processor times
of the process, which other programs on the machine hardly affect. The figures go to `results`.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

import anyrig
from workloads.figures import write_figures

RIG = "A100-80GB"
RANKS = 64
STEPS = 4
STEP_BAR_SECONDS = 2.0
HOST_BAR_BYTES = 2**30
WAYS = ("by hand, foreach", "by hand, fused", "spread, fused")


def train(way: str) -> dict[str, object]:
    """Train for `STEPS` steps as rank 0 of `RANKS`; return the figures."""
    from anyrig.virtual import install

    install(RIG, shape_only=True)
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from workloads.sharded_transformer import POLICY, on_meta, shard_layers, training_step

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    start = time.process_time()
    model = on_meta()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # The expected bytes: float32, each parameter split along its first dimension, rounded up.
    computed_bytes = sum(
        -(-parameter.shape[0] // RANKS) * parameter[0].numel() * 4
        for parameter in model.parameters()
    )
    net: torch.nn.Module = model
    if way.startswith("spread"):
        net = anyrig.spread(model, plan=anyrig.Shards(mixed_precision=POLICY))
    else:
        shard_layers(model)
    model.to_empty(device="cuda")
    # The requested bytes, because the allocator may round a large block up by up to 1 MiB.
    sharded_bytes = torch.cuda.memory_stats()["requested_bytes.all.current"]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), **{way.partition(", ")[2]: True})
    seconds = [time.process_time() - start]
    for _ in range(STEPS):
        start = time.process_time()
        training_step(net, model, optimizer)
        seconds.append(time.process_time() - start)
    dist.destroy_process_group()
    return {
        "way": way,
        "parameters": parameters,
        "computed_sharded_bytes": computed_bytes,
        "sharded_bytes": sharded_bytes,
        "resident_bytes": torch.cuda.memory_allocated(),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "building_seconds": seconds[0],
        "first_step_seconds": seconds[1],
        "step_seconds": statistics.median(seconds[2:]),
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def train_apart(way: str) -> dict[str, object]:
    command = [sys.executable, __file__, way]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> int:
    rows = [train_apart(way) for way in WAYS]
    table = Table(
        "sharded, AdamW",
        "first step",
        "step",
        "host",
        "bytes per rank",
        "expected",
        "GPU peak",
    )
    table.title = f"{rows[0]['parameters'] / 1e9:.1f}e9 parameters, FSDP2 on {RANKS} ranks"
    for row in rows:
        table.add_row(
            row["way"],
            f"{row['first_step_seconds']:.2f} s",
            f"{row['step_seconds']:.2f} s",
            anyrig.units.format_bytes(row["host_bytes"]),
            f"{row['sharded_bytes'] / 1e9:.6f}e9",
            "equal" if row["sharded_bytes"] == row["computed_sharded_bytes"] else "not equal",
            anyrig.units.format_bytes(row["peak_bytes"]),
        )
    Console().print(table)
    holds = all(
        row["step_seconds"] < STEP_BAR_SECONDS
        and row["host_bytes"] < HOST_BAR_BYTES
        and row["sharded_bytes"] == row["computed_sharded_bytes"]
        for row in rows
    )
    bars = f"under {STEP_BAR_SECONDS:g} s per step and 1 GiB of host memory, equal bytes"
    print(f"{bars}: {'holds' if holds else 'MISSED'}")
    write_figures("virtual_fsdp_64", rows, rig=RIG, ranks=RANKS)
    return 0 if holds else 1


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(train(sys.argv[1])))
    else:
        sys.exit(main())
