"""A part of the model's layers on each rank: pipelines, with each schedule of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from learner import batches, check_equal, new_model, optimizer_of, trained_alone
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn import functional

LAYERS = 8
MICRO_BATCHES = 8

# The stages of a rank, by the rank and the number of them.
Stages = Callable[[int, int], list[int]]


def one(rank: int, ranks: int) -> list[int]:
    return [rank]


def two_in_turn(rank: int, ranks: int) -> list[int]:
    return [rank, rank + ranks]


def two_in_a_v(rank: int, ranks: int) -> list[int]:
    return [rank, 2 * ranks - 1 - rank]


def check_pipeline(
    world: Any, schedule: Any, stages_of: Stages, dtype: torch.dtype = torch.float64
) -> None:
    model = new_model(LAYERS, dtype)
    expected = trained_alone(model, dtype)
    indices = stages_of(world.rank, world.size)
    count = world.size * len(indices)
    depth = LAYERS // count
    slices = [slice(index * depth, (index + 1) * depth) for index in indices]
    parts = nn.Sequential(*(model[these] for these in slices))
    stages = [
        PipelineStage(part, index, count, torch.device(world.device))
        for part, index in zip(parts, indices, strict=True)
    ]
    several = issubclass(schedule, schedules.PipelineScheduleMulti)
    runner = schedule(stages if several else stages[0], MICRO_BATCHES, loss_fn=functional.mse_loss)
    optimizer = optimizer_of(parts.parameters())
    for x, y in batches(dtype):
        optimizer.zero_grad()
        inputs = (x,) if 0 in indices else ()
        targets = {"target": y} if count - 1 in indices else {}
        runner.step(*inputs, **targets)
        optimizer.step()
    check_equal(parts, nn.Sequential(*(expected[these] for these in slices)))


def case_gpipe(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleGPipe, one)


def case_1f1b(world: Any) -> None:
    check_pipeline(world, schedules.Schedule1F1B, one)
    check_pipeline(world, schedules.Schedule1F1B, one, torch.float32)


def case_interleaved_1f1b(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleInterleaved1F1B, two_in_turn)


def case_looped_breadth_first(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleLoopedBFS, two_in_turn)


def case_interleaved_zero_bubble(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleInterleavedZeroBubble, two_in_turn)


def case_zero_bubble_in_a_v(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleZBVZeroBubble, two_in_a_v)


def case_dual_pipe_in_a_v(world: Any) -> None:
    check_pipeline(world, schedules.ScheduleDualPipeV, two_in_a_v)
