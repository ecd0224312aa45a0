"""Symmetric training runs, as rank 0 of 16 ranks, hold that rank's share of the bytes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import anyrig
from anyrig.hardware import driver_memory_of, spec_of_key

pytestmark = pytest.mark.usefixtures("group")

RANKS, WIDTH = 16, 64


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)).cuda()


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        model(torch.randn(8, WIDTH, device="cuda")).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def test_replicas() -> None:
    train(DistributedDataParallel(make_model(), device_ids=[0], gradient_as_bucket_view=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the import
def test_sharded_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = DistributedDataParallel(make_model())
    train(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1))


@pytest.mark.parametrize("shape", [(16,), (2, 8)], ids=["shards", "replicas of shards"])
def test_shards(shape: tuple[int, ...]) -> None:
    model = make_model()
    whole = sum(parameter.numel() for parameter in model.parameters())
    names = ("replicas", "shards")[-len(shape) :]
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=names)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    own = sum(parameter.to_local().numel() for parameter in model.parameters())
    assert own == whole // shape[-1]
    train(model)
    gathered = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert gathered["0.weight"].shape == (4 * WIDTH, WIDTH)


def test_messages_to_other_nodes_share_their_buffers() -> None:
    """NCCL has buffers for each of the 7 ranks of the node, and one pool for all 8 of the other."""
    group = dist.new_group(backend="nccl")
    before = anyrig.virtual.memory_outside_allocator(0).communication_bytes
    rows = torch.zeros(RANKS, device="cuda")
    dist.all_to_all_single(rows, torch.zeros(RANKS, device="cuda"), group=group)
    taken = anyrig.virtual.memory_outside_allocator(0).communication_bytes - before
    memory = driver_memory_of(spec_of_key("H100-SXM"))
    assert taken == 8 * memory.message_channels * memory.connection_bytes


def test_tensor_parallel() -> None:
    model = make_model()
    mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicas", "tensors"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tensors"], plan)
    assert model[0].weight.to_local().shape == (4 * WIDTH // 8, WIDTH)
    train(model)


@pytest.mark.parametrize("plan", [anyrig.Replicas(), anyrig.Shards()], ids=str)
def test_spread_models(plan: anyrig.parallel.plans.Plan) -> None:
    train(anyrig.spread(make_model(), plan=plan))
    assert dist.get_world_size() == RANKS
