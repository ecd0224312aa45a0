"""Training runs with `torch.distributed.pipelining`, whose ranks hold different parts of a model.

Each is one rank's training. With one rank, the rank has the whole model, as one stage or several.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    SplitPoint,
    pipeline,
)

from anyrig import Rig

SAMPLES, WIDTH, LAYERS, MICRO_BATCHES, STEPS = 16, 6, 8, 4, 2


class Net(nn.Module):
    """Some layers of a model, under the names that they have in the whole model."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.layers = nn.ModuleDict({str(i): layers[i] for i in range(first, last)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = torch.tanh(layer(x))
        return x


class Dropped(Net):
    """The same, with dropout, whose random state is the same on all ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.1)


class Renamed(Net):
    """The same, with a list that begins at zero in each stage."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(first, last)
        self.layers = nn.ModuleDict({str(i): layer for i, layer in enumerate(self.layers.values())})


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(STEPS * SAMPLES, WIDTH, generator=generator)
    return x, torch.randn(STEPS * SAMPLES, WIDTH, generator=generator)


def _train(
    make: type[Net] = Net,
    kind: type = ScheduleGPipe,
    *,
    stages_by_rank: int = 1,
    stages: int | None = None,
    copies: int = 1,
    divide: bool = True,
    parts: int | None = None,
    change: Callable[[int, nn.Module], None] | None = None,
) -> None:
    """Train one pipeline, or `copies` of it, with `parts` of the samples, one for each copy."""
    ranks = dist.get_world_size()
    copies = min(copies, ranks)
    mesh = init_device_mesh("cpu", (copies, ranks // copies), mesh_dim_names=("data", "stage"))
    group, rank = mesh.get_group("stage"), mesh.get_local_rank("stage")
    by_pipeline = mesh.size(1)
    count = stages or by_pipeline * stages_by_rank
    own = [index for index in range(count) if index % by_pipeline == rank]
    modules = [make(i * LAYERS // count, (i + 1) * LAYERS // count) for i in own]
    made = [
        PipelineStage(part, index, count, torch.device("cpu"), group=group)
        for index, part in zip(own, modules, strict=True)
    ]
    several = stages_by_rank > 1
    schedule = kind(made if several else made[0], MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    parameters = [each for part in modules for each in part.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.5)
    x, y = _data()
    parts = min(parts or copies, copies)
    part_of_batch = SAMPLES // parts
    for step in range(STEPS):
        begin = step * SAMPLES + mesh.get_local_rank("data") % parts * part_of_batch
        chosen = slice(begin, begin + part_of_batch)
        optimizer.zero_grad()
        has_first, has_last = 0 in own, count - 1 in own
        schedule.step(
            *([x[chosen]] if has_first else []), **({"target": y[chosen]} if has_last else {})
        )
        if copies > 1:
            for each in parameters:
                dist.all_reduce(each.grad, group=mesh.get_group("data"))
                each.grad /= copies if divide else 1
        if change is not None:
            for part in modules:
                change(rank, part)
        optimizer.step()


def right(_: Rig) -> None:
    _train()


class Listed(nn.Module):
    """The whole model with a list of its layers, which `pipeline` divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def right_traced(_: Rig) -> None:
    x, y = _data()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    cuts = {f"layers.{i * LAYERS // ranks}": SplitPoint.BEGINNING for i in range(1, ranks)}
    pipe = pipeline(Listed(), mb_args=(x[: SAMPLES // MICRO_BATCHES],), split_spec=cuts)
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), 0.5)
    for step in range(STEPS):
        chosen = slice(step * SAMPLES, (step + 1) * SAMPLES)
        optimizer.zero_grad()
        inputs = [x[chosen]] if stage.is_first else []
        schedule.step(*inputs, **({"target": y[chosen]} if stage.is_last else {}))
        optimizer.step()


def right_1f1b(_: Rig) -> None:
    _train(kind=Schedule1F1B)


def right_interleaved(_: Rig) -> None:
    _train(kind=ScheduleInterleaved1F1B, stages_by_rank=2)


def right_with_dropout(_: Rig) -> None:
    _train(make=Dropped)


def right_copies(_: Rig) -> None:
    _train(copies=2)


def sums_over_copies(_: Rig) -> None:
    _train(copies=2, divide=False)


def repeats_samples_in_each_copy(_: Rig) -> None:
    _train(copies=2, parts=1)


def doubles_the_last_stage(_: Rig) -> None:
    def change(rank: int, part: nn.Module) -> None:
        if rank and rank == dist.get_world_size() - 1:
            for each in part.parameters():
                each.grad *= 2

    _train(change=change)


def names_from_zero(_: Rig) -> None:
    _train(make=Renamed)


def names_from_zero_interleaved(_: Rig) -> None:
    _train(make=Renamed, kind=ScheduleInterleaved1F1B, stages_by_rank=2)


TIMES = "\u00d7"
EXPECTED = {
    "right": (0, ""),
    "right_1f1b": (0, ""),
    "right_interleaved": (0, ""),
    "right_with_dropout": (0, ""),
    "right_copies": (0, ""),
    "sums_over_copies": (
        1,
        f"all gradients are {TIMES}2 what one device computes: summed over groups of 2 of the 4",
    ),
    "repeats_samples_in_each_copy": (
        1,
        "all 2 ranks with the first stage of the pipeline compute the same",
    ),
    "doubles_the_last_stage": (1, "only gradients of pipeline stage 3 are " + TIMES + "2"),
    "names_from_zero": (2, "stages 0 and 1 both have a parameter layers.0.weight"),
    "names_from_zero_interleaved": (2, "both have a parameter Renamed.layers.0.weight"),
}
