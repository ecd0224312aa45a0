"""Correct training runs with every way of spreading, about which nothing may be reported.

Each function is one rank's part of a run. `COMBINATIONS` has 200 runs; `SAMPLE` has the runs of the
default suite.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import anyrig
from anyrig import Rig

FEATURES, WIDTH, CLASSES = 6, 8, 5
STEPS = 2

WAYS = (
    *("ddp", "fsdp", "fsdp1", "fsdp1-flat", "hsdp", "tensor"),
    *("spread", "spread-shards", "pipeline", "by hand"),
)
WITH_WHOLE_BATCHES = ("tensor", "pipeline")
BATCHES = (16, 13)  # 13 leaves the ranks unequal numbers of samples
ACCUMULATION = (1, 3)
CLIPPING = (None, 0.05)
OPTIMIZERS = ("sgd", "adamw")
LOADING = ("sampler", "slices")
DROPOUT = (False, True)


class Net(nn.Module):
    """Two linear layers with a norm, which tensor parallelism can divide."""

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.up = nn.Linear(FEATURES, WIDTH)
        self.dropout = nn.Dropout(0.5 if dropout else 0.0)
        self.down = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.dropout(torch.tanh(self.up(self.norm(x)))))


def deep() -> nn.Module:
    """Return a model with layers for four stages."""
    return nn.Sequential(
        *(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()),
        *(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES)),
    )


def combinations() -> Iterator[tuple[str, int, int, float | None, str, str, bool]]:
    """Yield way, batch, micro-batches, clipping, optimizer, loading, dropout."""
    everything = itertools.product(
        WAYS, BATCHES, ACCUMULATION, CLIPPING, OPTIMIZERS, LOADING, DROPOUT
    )
    for way, batch, parts, clip, optimizer, loading, dropout in everything:
        if loading == "sampler" and batch % 4:
            continue  # a DistributedSampler repeats samples to make the ranks' parts equal
        if way in WITH_WHOLE_BATCHES and (loading == "sampler" or dropout):
            continue
        if clip is not None and way in ("pipeline", "fsdp1", "fsdp1-flat"):
            continue  # each rank has the norm of its part only; FSDP1's clip has no float64
        yield way, batch, parts, clip, optimizer, loading, dropout


COMBINATIONS = [*combinations()]
SAMPLE = [
    ("ddp", 16, 1, None, "sgd", "sampler", True),
    ("ddp", 13, 3, 0.05, "adamw", "slices", False),
    ("fsdp", 16, 3, 0.05, "adamw", "sampler", False),
    ("fsdp", 13, 1, None, "sgd", "slices", False),
    ("fsdp1", 13, 1, None, "adamw", "slices", False),
    ("fsdp1-flat", 16, 3, None, "sgd", "sampler", False),
    ("hsdp", 16, 1, 0.05, "sgd", "sampler", False),
    ("tensor", 16, 3, 0.05, "adamw", "slices", False),
    ("tensor", 13, 1, None, "sgd", "slices", False),
    ("spread", 13, 3, 0.05, "adamw", "slices", True),
    ("spread-shards", 13, 1, None, "sgd", "slices", False),
    ("pipeline", 16, 3, None, "adamw", "slices", False),
    ("by hand", 13, 3, 0.05, "sgd", "slices", False),
]


def training(
    way: str, batch: int, parts: int, clip: float | None, kind: str, loading: str, dropout: bool
) -> Callable[[Rig], None]:
    """Return a correct training run, whose loss is the mean over all samples of a step."""

    def train(rig: Rig) -> None:
        torch.manual_seed(0)
        model = _spread(deep() if way == "pipeline" else Net(dropout), way, rig)
        made = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind]
        optimizer = made(model.parameters(), 0.05)
        torch.manual_seed(100 + dist.get_rank())  # other dropout on each rank
        batches = iter(_batches(batch, loading, way))
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(parts):
                x, y, total = next(batches)
                if way == "pipeline":  # a mean over the samples, on every rank
                    (model(x, target=y) / parts).backward()
                    continue
                # A sum over this rank's samples, by those of all ranks and micro-batches.
                sums = nn.functional.cross_entropy(model(x), y, reduction="sum")
                loss = sums / (total * parts)
                if way == "ddp" or "fsdp" in way or way == "hsdp":  # which average over the ranks
                    loss = loss * dist.get_world_size()
                elif way.startswith("spread"):  # which averages over the samples of all ranks
                    loss = sums / max(1, len(x)) / parts
                loss.backward()
            if way == "by hand":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            if clip is not None and way == "tensor":
                _clip(model, clip)
            elif clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()

    return train


def _spread(model: nn.Module, way: str, rig: Rig) -> nn.Module:
    ranks = dist.get_world_size()
    if way == "ddp":
        return DistributedDataParallel(model)
    if way == "fsdp":
        fully_shard(model.up)
        return fully_shard(model)
    if way.startswith("fsdp1"):
        one = torch.device("cpu")
        model.up = FullyShardedDataParallel(model.up, device_id=one, use_orig_params=way == "fsdp1")
        return FullyShardedDataParallel(model, device_id=one, use_orig_params=way == "fsdp1")
    if way == "hsdp":
        outer = 2 if ranks == 4 else 1
        mesh = init_device_mesh("cpu", (outer, ranks // outer), mesh_dim_names=("copy", "shard"))
        return fully_shard(model, mesh=mesh)
    if way == "tensor":
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)
    if way == "spread":
        return anyrig.spread(model, rig)
    if way == "spread-shards":
        return anyrig.spread(model, rig, plan=anyrig.Shards())
    if way == "pipeline":
        stages = anyrig.Pipeline() if ranks > 1 else None
        return anyrig.spread(model, rig, plan=stages, loss=nn.CrossEntropyLoss())
    return model


def _clip(model: nn.Module, most: float) -> None:
    """Clip gradients of which only some are DTensors, which `clip_grad_norm_` refuses."""
    gradients = [parameter.grad for parameter in model.parameters()]
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in gradients]
    norm = torch.stack([one.square().sum() for one in whole]).sum().sqrt()
    for one in gradients:
        one *= min(1.0, most / float(norm))


def _batches(
    batch: int, loading: str, way: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """Yield this rank's inputs and labels, and the number of samples of all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(8 * batch, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (8 * batch,), generator=generator)
    dataset = TensorDataset(inputs, labels)
    if loading == "sampler":
        sampler = DistributedSampler(dataset, ranks, rank, seed=3)
        loader = DataLoader(dataset, batch // ranks, sampler=sampler)
        for x, y in loader:
            yield x, y, batch
        return
    for x, y in DataLoader(dataset, batch, shuffle=False):
        if way in WITH_WHOLE_BATCHES:
            yield x, y, batch
        else:
            yield x[rank::ranks], y[rank::ranks], len(x)


def run_rank(cases: str, folder: str, dtype: str = "float64") -> None:
    """Verify correct runs on this rank; rank 0 writes what was reported to a file of `folder`."""
    import json
    import os
    import time
    import traceback
    from pathlib import Path

    from anyrig.processes.group.membership import join_group
    from anyrig.verification import verify

    torch.set_num_threads(1)
    join_group(timeout_seconds=60)
    verdicts = []
    for case in json.loads(cases):
        begin = time.perf_counter()
        try:
            verdict = verify(training(*case), steps=STEPS, dtype=getattr(torch, dtype))
        except Exception:
            verdicts.append([case, -1, traceback.format_exc()])
            break
        verdicts.append([case, verdict.exit_code, str(verdict), time.perf_counter() - begin])
    if os.environ["RANK"] == "0":
        Path(folder, "verdicts.json").write_text(json.dumps(verdicts))
    dist.destroy_process_group()
