"""Pipeline stages of a model on each rank, with each of PyTorch's schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from learner import batches, check_equal, new_model, new_model_trained, optimizer_of
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn import functional

# Each rank has at most two stages, of at least one layer.
LAYERS_PER_RANK = 2
MICRO_BATCHES_PER_RANK = 2

# Maps (rank, number of ranks) to the stages of that rank.
Stages = Callable[[int, int], list[int]]


def one_stage(rank: int, ranks: int) -> list[int]:
    return [rank]


def two_interleaved_stages(rank: int, ranks: int) -> list[int]:
    return [rank, rank + ranks]


def two_v_stages(rank: int, ranks: int) -> list[int]:
    return [rank, 2 * ranks - 1 - rank]


def check_pipeline(
    world: Any, schedule: Any, stages_of: Stages, dtype: torch.dtype = torch.float64
) -> None:
    layers = LAYERS_PER_RANK * world.size
    model = new_model(layers, dtype)
    expected = new_model_trained(layers, dtype)
    indices = stages_of(world.rank, world.size)
    count = world.size * len(indices)
    depth = layers // count
    slices = [slice(index * depth, (index + 1) * depth) for index in indices]
    parts = nn.Sequential(*(model[layers_of_stage] for layers_of_stage in slices))
    stages = [
        PipelineStage(part, index, count, torch.device(world.device))
        for part, index in zip(parts, indices, strict=True)
    ]
    several = issubclass(schedule, schedules.PipelineScheduleMulti)
    runner = schedule(
        stages if several else stages[0],
        MICRO_BATCHES_PER_RANK * world.size,
        loss_fn=functional.mse_loss,
    )
    optimizer = optimizer_of(parts.parameters())
    for x, y in batches(dtype):
        optimizer.zero_grad()
        inputs = (x,) if 0 in indices else ()
        targets = {"target": y} if count - 1 in indices else {}
        runner.step(*inputs, **targets)
        optimizer.step()
    check_equal(parts, nn.Sequential(*(expected[layers_of_stage] for layers_of_stage in slices)))


def case_gpipe(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleGPipe, one_stage)


def case_1f1b(world: Any) -> None:
    check_pipeline(world, schedules.Schedule1F1B, one_stage)
    check_pipeline(world, schedules.Schedule1F1B, one_stage, torch.float32)


def case_interleaved_1f1b(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleInterleaved1F1B, two_interleaved_stages)


def case_looped_breadth_first(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleLoopedBFS, two_interleaved_stages)


def case_interleaved_zero_bubble(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleInterleavedZeroBubble, two_interleaved_stages)


def case_zero_bubble_in_a_v(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleZBVZeroBubble, two_v_stages)


def case_dual_pipe_in_a_v(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleDualPipeV, two_v_stages)
