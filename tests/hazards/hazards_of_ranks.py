"""Watch small training runs over ranks; most clear their gradients in one way or another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from anyrig.hazards import watch_hazards
from anyrig.processes.group.membership import join_group

CPU = torch.device("cpu")
STEPS = 4
WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "tensor parallel": lambda model: parallelize_module(model, init_device_mesh("cpu", (2,)), PLAN),
    "fsdp2": lambda model: fully_shard(model),
    "fsdp1": lambda model: FullyShardedDataParallel(model, device_id=CPU, use_orig_params=True),
    "fsdp1 with flat parameters": lambda model: FullyShardedDataParallel(model, device_id=CPU),
}
PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}
CLEARINGS = ("never", "by the optimizer", "to zeros", "by hand", "by data", "every second step")


def train(way: str, clearing: str) -> None:
    """Train a small model, and clear its gradients in one of the ways of `CLEARINGS`."""
    torch.manual_seed(0)
    model = WAYS[way](nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        for _ in range(2):
            model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        if clearing == "to zeros":
            optimizer.zero_grad(set_to_none=False)
        elif clearing in ("by hand", "by data"):
            for parameter in model.parameters():
                if clearing == "by hand":
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.data.zero_()
        elif clearing == "by the optimizer" or (clearing == "every second step" and step % 2):
            optimizer.zero_grad()


def run_rank(folder: str) -> None:
    """Train in every way; each rank writes the hazards of each run to a file in `folder`."""
    torch.set_num_threads(1)
    join_group(timeout_seconds=60)
    found = {}
    for way in WAYS:
        for clearing in CLEARINGS:
            with watch_hazards(warn=False) as hazards:
                train(way, clearing)
            found[f"{way}, {clearing}"] = [hazard.kind.name for hazard in hazards]
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
