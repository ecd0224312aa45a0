"""A model in a layout, its optimizer and its loader: steps, numbers and content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.checkpoint.snapshot_files import read_snapshot
from anyrig.checkpoint.tensor_in_parts import whole_tensor
from anyrig.processes.group.membership import current_context

SAMPLES, BATCH_SIZE = 43, 6  # 8 batches, the last of one sample


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    # 5 and 7 rows are divided unevenly among 2 and 3 ranks, and 1 row leaves ranks without any.
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 7), nn.Linear(7, 1))


def make_objects(layout: str) -> dict[str, Any]:
    """Return a model in a layout, its optimizer and its loader."""
    model: Any = make_model()
    if layout == "spread":
        model = anyrig.spread(model.to("cuda:0"), "cuda:0,1")
    elif layout == "ranks":
        model = anyrig.spread(model)
    elif layout == "shards":
        model = anyrig.spread(model, plan=anyrig.Shards())
    elif layout == "pipeline":
        current_context().counts["loaders without a model"] = 0
        model = anyrig.spread(model, plan=anyrig.Pipeline())
        current_context().counts["pipelines"] = 0  # each rank takes samples, as in other layouts
    elif layout == "replicas of shards":
        from torch.distributed.fsdp import fully_shard

        shape = (dist.get_world_size(), 1)  # each rank has all elements, and so a choice of writers
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
        fully_shard(model, mesh=mesh)
    elif layout == "plain DDP":
        anyrig.barrier()
        model = DistributedDataParallel(model)
    elif layout == "plain FSDP2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    data = TensorDataset(torch.arange(SAMPLES))
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), 0.01),
        "loader": anyrig.distribute(DataLoader(data, BATCH_SIZE, shuffle=True), shares="even"),
    }


def train_steps(objects: dict[str, Any], steps: int) -> None:
    model, optimizer = objects["model"], objects["optimizer"]
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        device = next(model.parameters()).device
        model(inputs.to(device)).square().mean().backward()
        optimizer.step()


def numbers_of(loader: Any, batches: int) -> list[int]:
    """Return the samples of this rank's next batches."""
    iterator = iter(loader)
    return [number for _ in range(batches) for number in next(iterator)[0].tolist()]


def content_of(folder: Path) -> dict[str, Any]:
    """Return all tensors of a checkpoint, and the options of its optimizer."""
    snapshot = read_snapshot(folder)
    state = snapshot.optimizers[""]
    tensors: dict[str, Any] = {
        name: whole_tensor(tensor) for name, tensor in (snapshot.model or {}).items()
    }
    for name, parts in state.tensors.items():
        tensors |= {f"{name}.{part}": whole_tensor(each) for part, each in parts.items()}
    return tensors | {"groups": state.groups}


def assert_same_content(one: Path, other: Path) -> None:
    first, second = content_of(one), content_of(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        same = torch.equal(value, second[name]) if isinstance(value, Tensor) else None
        assert same if same is not None else value == second[name], name
