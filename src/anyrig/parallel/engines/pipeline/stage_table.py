"""What was chosen for a pipeline, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ....units import format_bytes
from ...plans import Pipeline
from .balance import Balance, bytes_of
from .micro_batches import MicroBatches, find_whole_batch_layer
from .placement import PlacedPipeline
from .schedules.named import make_schedule
from .schedules.picture import draw
from .schedules.schedule import Schedule
from .schedules.timeline import simulate


@dataclass(frozen=True)
class StagePlan:
    """One stage of a pipeline.

    Attributes:
        device: where the stage computes.
        blocks: the names of its blocks, in order.
        parameter_bytes: the size of its parameters and buffers.
        seconds: for a micro-batch, forward and backward, by published rates; None if unknown.
        rank: the rank that has the stage, in the first pipeline; None in one process.
    """

    device: torch.device
    blocks: tuple[str, ...]
    parameter_bytes: int
    seconds: float | None
    rank: int | None = None

    def __str__(self) -> str:
        names = self.blocks[0] if len(self.blocks) == 1 else f"{self.blocks[0]} … {self.blocks[-1]}"
        count = f"{len(self.blocks)} block{'s' if len(self.blocks) > 1 else ''}"
        time = "" if self.seconds is None else f", {1e3 * self.seconds:.3g} ms"
        place = self.device if self.rank is None else f"rank {self.rank}"
        return f"on {place}: {names} ({count}, {format_bytes(self.parameter_bytes)}{time})"


@dataclass(frozen=True)
class StageTable:
    """How a module is divided into stages, and in which order they compute.

    Attributes:
        stages: in order.
        balance: how the module was cut into stages.
        schedule: the order of all tasks of a training step.
        schedule_reason: why this schedule.
        micro_batches: their number, and why.
        checkpoint: which micro-batches keep no activations: ``"never"`` (all keep them),
            ``"except_last"`` or ``"always"``.
    """

    stages: tuple[StagePlan, ...]
    balance: str
    schedule: Schedule
    schedule_reason: str
    micro_batches: str
    checkpoint: str

    def with_micro_batches(
        self, micro_batches: MicroBatches, module: torch.nn.Module, whole: str
    ) -> StageTable:
        """Return the plan for the micro-batches of a module in its present mode.

        Args:
            micro_batches: what was chosen.
            module: the module, which may have a layer that needs the whole batch.
            whole: why the batch is one micro-batch, if the module's code needs that; else empty.
        """
        described = whole or micro_batches.describe_for(module)
        is_whole = whole or find_whole_batch_layer(module) is not None
        devices = len({*self.schedule.device_of_stage})
        schedule = make_schedule(
            self.schedule.name,
            devices,
            1 if is_whole else micro_batches.number,
            self.schedule.stages // devices,
        )
        return replace(self, micro_batches=described, schedule=schedule)

    def __str__(self) -> str:
        lines = [f"stage {index} {stage}" for index, stage in enumerate(self.stages)]
        lines.append(f"divided {self.balance}")
        lines.append(f"micro-batches: {self.micro_batches}")
        lines.append(f"schedule {self.schedule.name}: {self.schedule_reason}")
        lines += [f"    {line}" for line in draw(simulate(self.schedule)).splitlines()]
        if self.checkpoint != "never":
            which = "all" if self.checkpoint == "always" else "all but the last"
            lines.append(f"checkpoint: {which} micro-batches compute activations again in backward")
        return "\n".join(lines)


def make_stage_table(
    pipeline: PlacedPipeline,
    balance: Balance,
    schedule: Schedule,
    schedule_reason: str,
    plan: Pipeline,
    ranks: Sequence[int | None],
) -> StageTable:
    """Return the plan without micro-batches; rank ``ranks[i]`` has stage i, None in one process."""
    stages = tuple(
        StagePlan(
            stage.device,
            tuple(block.name for block in stage.blocks),
            bytes_of(stage.blocks),
            None if balance.seconds is None else balance.seconds[stage.index],
            rank,
        )
        for stage, rank in zip(pipeline.stages, ranks, strict=True)
    )
    return StageTable(stages, balance.reason, schedule, schedule_reason, "", plan.checkpoint)
