"""A module divided into stages, each on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from threading import RLock

import torch
from torch import nn

from ....errors import SpreadError
from .chain import Chain
from .schedules.named import make_schedule
from .schedules.schedule import Task
from .schedules.timeline import issue_order
from .slots import list_slots, move_in_place, tensors_in
from .stage import Stage


@dataclass(frozen=True)
class PlacedPipeline:
    """A module divided into stages.

    Attributes:
        chain: the whole module.
        stages: in order.
    """

    chain: Chain
    stages: tuple[Stage, ...]

    def order_of(self, schedule: str, micro_batches: int) -> tuple[Task, ...] | None:
        """Return the order in which the tasks of a training step are issued.

        None leaves the order of backward passes to autograd: `schedule` is gpipe, or does not allow
        so few micro-batches, as for the last batch of an epoch.
        """
        if schedule == "gpipe":
            return None
        devices = len({stage.device for stage in self.stages})
        try:
            return issue_order(
                make_schedule(schedule, devices, micro_batches, len(self.stages) // devices)
            )
        except SpreadError:
            return None


def make_stages(
    chain: Chain, devices: Sequence[torch.device], sizes: Sequence[int]
) -> PlacedPipeline:
    """Return the stages of a chain; stage i has ``sizes[i]`` blocks, on ``devices[i]``.

    Nothing is moved; see `place_module`.
    """
    stages = []
    turn = RLock()  # a thread of autograd may begin a backward pass within another
    spans = list(pairwise(accumulate(sizes, initial=0)))
    for index, ((first, end), device) in enumerate(zip(spans, devices, strict=True)):
        reads, writes = chain.reads_of(first, end), chain.writes_of(first, end)
        if index == len(sizes) - 1:
            # The last stage builds the result, also from values of earlier stages.
            reads = tuple(dict.fromkeys([*reads, *set_apart(chain.result_reads, writes)]))
            writes = chain.result_reads
        stages.append(Stage(index, device, chain.blocks[first:end], reads, writes, turn))
    return PlacedPipeline(chain, tuple(stages))


def set_apart(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the names that are not among the others, in order."""
    return [name for name in names if name not in others]


def place_module(module: nn.Module, stages: Sequence[Stage]) -> None:
    """Move parameters and buffers to the first stage that uses them, or to stage 0 if none does."""
    seen: set[int] = set()
    for stage in (*stages, None):
        slots = list_slots([module]) if stage is None else stage.slots
        device = stages[0].device if stage is None else stage.device
        mine = [slot for slot, tensor in tensors_in(slots) if id(tensor) not in seen]
        seen.update(id(tensor) for _, tensor in tensors_in(mine))
        move_in_place(mine, device)


@cache
def forward_order(stages: int, micro_batches: int) -> tuple[Task, ...]:
    """Return the order in which forward passes are issued."""
    return issue_order(make_schedule("forward", stages, micro_batches))
