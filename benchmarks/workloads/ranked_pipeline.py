"""Training steps with torch.distributed.pipelining, in one rank for each device.

Each rank has a virtual clock of its own, and the clocks meet in every message and collective. A
barrier precedes the measured steps, so the times of all ranks lie on one time line.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from workloads.pipelined_training import LAYERS, PipelineRun, batch_shape, build_layers

SCHEDULES: dict[str, Any] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    "zero-bubble-v": schedules.ScheduleZBVZeroBubble,
}
STAGES_PER_RANK = {"interleaved": 2, "zero-bubble-v": 2}  # as with anyrig; otherwise 1


def measure_over_ranks(run: PipelineRun) -> dict[str, Any]:
    """Return the figures of one run. Needs the virtual rig."""
    import anyrig

    devices = ",".join(f"cuda:{index}" for index in range(run.devices))
    return anyrig.launch(_measure_rank, (run,), rig=devices)


def _measure_rank(run: PipelineRun) -> dict[str, Any]:
    from anyrig.virtual import clock

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    stages = _stages_of(run, device)
    schedule = _schedule_of(run, stages)
    parameters = nn.ModuleList(stage.submod for stage in stages).parameters()
    optimizer = torch.optim.SGD(parameters, 0.01)
    batch = torch.zeros(batch_shape(run), device=device)
    inputs = [batch] if any(stage.is_first for stage in stages) else []
    target = {"target": batch.clone()} if any(stage.is_last for stage in stages) else {}
    del batch

    def step() -> None:
        schedule.step(*inputs, **target, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()

    step()
    dist.barrier()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = clock()
    for _ in range(run.steps):
        step()
    host_seconds = clock().host_seconds - start.host_seconds
    torch.cuda.synchronize()
    mine = start.done_seconds, clock().done_seconds, host_seconds, torch.cuda.max_memory_allocated()
    of_all: list[Any] = [None] * run.devices
    dist.all_gather_object(of_all, mine)
    dist.destroy_process_group()
    starts, ends, hosts, peaks = zip(*of_all, strict=True)
    return {
        "step_seconds": (max(ends) - max(starts)) / run.steps,
        "host_seconds": max(hosts) / run.steps,
        "peak_bytes": peaks,
    }


def _stages_of(run: PipelineRun, device: torch.device) -> list[PipelineStage]:
    """Return this rank's stages: rank, rank + devices, …; with zero-bubble-v the ends of a V."""
    rank, count = dist.get_rank(), run.devices * STAGES_PER_RANK.get(run.schedule, 1)
    indices = list(range(rank, count, run.devices))
    if run.schedule == "zero-bubble-v":
        indices = [rank, count - 1 - rank]
    return [
        PipelineStage(build_layers(LAYERS // count).to(device), index, count, device)
        for index in indices
    ]


def _schedule_of(run: PipelineRun, stages: list[PipelineStage]) -> Any:
    criterion = nn.MSELoss()
    kind = SCHEDULES[run.schedule]
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    given = stages[0] if single else stages
    if run.engine == "pipelining":
        return kind(given, run.micro_batches, loss_fn=criterion)

    def part_of_loss(output: Tensor, target: Tensor) -> Tensor:
        return criterion(output, target) / run.micro_batches

    return kind(given, run.micro_batches, loss_fn=part_of_loss, scale_grads=False)
