"""A whole model on every rank: DDP, ZeroRedundancyOptimizer and SyncBatchNorm."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from learner import (
    LENGTH,
    WIDTH,
    batches,
    check_equal,
    has_values,
    new_model,
    new_model_trained,
    optimizer_of,
    train,
    train_reference,
)
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from anyrig.errors import ValueNeededError

with warnings.catch_warnings():
    # This module uses TorchScript, which is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer


def check_replica(
    world: Any, model: nn.Module, expected: nn.Module | None = None, **options: Any
) -> None:
    expected = new_model_trained() if expected is None else expected
    replica = DistributedDataParallel(model, **options)
    train(replica, optimizer_of(replica.parameters()), rank=world.rank, ranks=world.size)
    check_equal(model, expected)


def case_ddp(world: Any) -> None:
    for dtype in (torch.float64, torch.float32):
        model = new_model(dtype=dtype)
        expected = new_model_trained(dtype=dtype)
        replica = DistributedDataParallel(model, device_ids=[world.rank])
        optimizer = optimizer_of(replica.parameters())
        train(replica, optimizer, dtype, rank=world.rank, ranks=world.size)
        check_equal(model, expected)


def case_ddp_over_gloo(world: Any) -> None:
    gloo = dist.new_group(backend="gloo")
    model = new_model()
    if has_values():
        check_replica(world, model, process_group=gloo)
    else:
        with pytest.raises(ValueNeededError):
            check_replica(world, model, process_group=gloo)


def case_ddp_with_gradients_as_bucket_views(world: Any) -> None:
    check_replica(world, new_model(), gradient_as_bucket_view=True)


def case_ddp_with_a_static_graph(world: Any) -> None:
    check_replica(world, new_model(), static_graph=True)


class FirstLayerOnly(nn.Module):
    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model[0](x)


def case_ddp_with_unused_parameters(world: Any) -> None:
    model = FirstLayerOnly(new_model())
    check_replica(world, model, train_reference(model), find_unused_parameters=True)


def case_ddp_with_detailed_checks(world: Any) -> None:
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        check_replica(world, new_model(), process_group=dist.new_group())
    finally:
        dist.set_debug_level(level)


def case_ddp_with_hooks(world: Any) -> None:
    model = new_model()
    expected = new_model_trained()
    replica = DistributedDataParallel(model)
    replica.register_comm_hook(None, default_hooks.allreduce_hook)
    train(replica, optimizer_of(replica.parameters()), rank=world.rank, ranks=world.size)
    check_equal(model, expected)


def case_ddp_with_compression_hooks(world: Any) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    for state_of_hook, hook in (
        (None, default_hooks.fp16_compress_hook),
        (None, default_hooks.bf16_compress_hook),
        (state, powerSGD_hook.powerSGD_hook),
    ):
        model = new_model(dtype=torch.float32)
        replica = DistributedDataParallel(model)
        replica.register_comm_hook(state_of_hook, hook)
        optimizer = optimizer_of(replica.parameters())
        # PowerSGD starts in the third step, and its fourth step uses what the third one kept.
        train(replica, optimizer, torch.float32, rank=world.rank, ranks=world.size, steps=5)
        rank_0_model = copy.deepcopy(model)
        for parameter in rank_0_model.parameters():
            dist.broadcast(parameter.data, 0)
        check_equal(model, rank_0_model)


def case_ddp_no_sync(world: Any) -> None:
    """Each rank computes its share in two halves and synchronises only in the second."""
    model = new_model()
    expected = new_model_trained()
    replica = DistributedDataParallel(model)
    optimizer = optimizer_of(replica.parameters())
    for x, y in batches(torch.float64):
        optimizer.zero_grad()
        (x1, x2), (y1, y2) = (z.chunk(world.size)[world.rank].chunk(2) for z in (x, y))
        with replica.no_sync():
            (functional.mse_loss(replica(x1), y1) / 2).backward()
        (functional.mse_loss(replica(x2), y2) / 2).backward()
        optimizer.step()
    check_equal(model, expected)


def case_ddp_joins_uneven_inputs(world: Any) -> None:
    """Rank r has r + 1 batches; a rank without a batch contributes a zero gradient."""
    model = new_model()
    expected = copy.deepcopy(model)
    optimizer = optimizer_of(expected.parameters())
    for done, (x, y) in enumerate(batches(torch.float64, world.size)):
        optimizer.zero_grad()
        share = (world.size - done) / world.size
        (functional.mse_loss(expected(x), y) * share).backward()
        optimizer.step()
    replica = DistributedDataParallel(model)
    optimizer = optimizer_of(replica.parameters())
    with Join([replica]):
        for x, y in batches(torch.float64, world.rank + 1):
            optimizer.zero_grad()
            functional.mse_loss(replica(x), y).backward()
            optimizer.step()
    check_equal(model, expected)


def case_zero_redundancy_optimizer(world: Any) -> None:
    model = new_model()
    expected = new_model_trained()
    replica = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(replica.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    train(replica, optimizer, rank=world.rank, ranks=world.size)
    check_equal(model, expected)
    if has_values():
        optimizer.consolidate_state_dict(0)


def case_synchronised_batch_norm(world: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(LENGTH), nn.Linear(WIDTH, WIDTH))
    model = model.to("cuda", torch.float64)
    expected = train_reference(model)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    replica = DistributedDataParallel(model, device_ids=[world.rank])
    optimizer = optimizer_of(replica.parameters())
    if not has_values():
        # SyncBatchNorm indexes by a mask of gathered values, to skip ranks without samples.
        with pytest.raises(ValueNeededError, match="aten::index"):
            train(replica, optimizer, rank=world.rank, ranks=world.size)
        return
    train(replica, optimizer, rank=world.rank, ranks=world.size)
    check_equal(model, expected)
    torch.testing.assert_close(model[1].running_var, expected[1].running_var)
