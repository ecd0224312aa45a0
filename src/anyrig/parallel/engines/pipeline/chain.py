"""A module as a chain of blocks, which can be cut between any two of them.

::

    arguments ─▶ block 0 ─▶ block 1 ─▶ block 2 ─▶ result
                    └───── skip ──────────▲

Blocks read and write *values* by name. Usually the next block alone reads a value; if a later block
reads it as well, it is a skip connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...losses.means_of_parts import AddUp
from .micro_batches import MicroBatch

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Block:
    """A piece of a module that is never divided.

    Attributes:
        name: for messages: ``"layers.3"``, or the first and last operation.
        module: takes the read values as positional arguments and returns the written ones: a tuple,
            or the value itself if there is one. Its parameters and buffers are those of the module
            that was divided, the same objects.
        reads: the names of values that the block needs.
        writes: the names of values that the block makes.
        undivided: why a larger block could not be divided, with file and line; else empty.
    """

    name: str
    module: torch.nn.Module
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    undivided: str = ""

    def compute(self, values: Values) -> dict[str, Any]:
        """Return the written values by name, computed from `values`."""
        result = self.module(*(values[name] for name in self.reads))
        return dict(zip(self.writes, (result,) if len(self.writes) == 1 else result, strict=True))


@dataclass(frozen=True)
class Chain:
    """A module as blocks.

    Attributes:
        blocks: in order of computation.
        bind: how a call's arguments become values: ``bind(args, kwargs)`` returns the values
            that blocks may read, by name.
        build: how the result is made of values: ``build(values)``.
        result_reads: the names of the values that the result needs.
        require_same: raises SpreadError if the module has changed so that the blocks, or the
            stages made of them, would compute something else; called once before each call.
        divide: how the losses that the module itself computes become those of parts:
            ``divide(values, samples, add_up)`` returns values that replace those of each part,
            given the values of the whole call and the number of samples of each part; `add_up`
            adds up what a loss divides by over all pipelines.
        whole_loss: the line of code that computes a loss which cannot be divided; else empty.
    """

    blocks: tuple[Block, ...]
    bind: Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]
    build: Callable[[Values], Any]
    result_reads: tuple[str, ...]
    require_same: Callable[[], None]
    divide: Callable[[Values, Sequence[int], AddUp], Sequence[Values]]
    whole_loss: str

    def bind_parts(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        parts: Sequence[MicroBatch],
        add_up: AddUp | None = None,
    ) -> list[dict[str, Any]]:
        """Return the values of the arguments of each part of a call, given those of the whole.

        `add_up` is given if other pipelines compute other samples of the batch.
        """
        bound = [self.bind(part.args, part.kwargs) for part in parts]
        if len(parts) > 1 or add_up is not None:
            samples = [part.samples for part in parts]
            divided = self.divide(self.bind(args, kwargs), samples, add_up or _alone)
            for values, others in zip(bound, divided, strict=True):
                values.update(others)
        return bound

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns, computed block by block."""
        self.require_same()
        values = self.bind(args, kwargs)
        for block in self.blocks:
            values.update(block.compute(values))
        return self.build(values)

    def reads_of(self, first: int, end: int) -> tuple[str, ...]:
        """Return the values that blocks ``first:end`` need from earlier blocks or arguments."""
        written: set[str] = set()
        needed: dict[str, None] = {}
        for block in self.blocks[first:end]:
            needed.update(dict.fromkeys(name for name in block.reads if name not in written))
            written.update(block.writes)
        return tuple(needed)

    def writes_of(self, first: int, end: int) -> tuple[str, ...]:
        """Return the values of blocks ``first:end`` that later blocks or the result need."""
        written = [name for block in self.blocks[first:end] for name in block.writes]
        later = {name for block in self.blocks[end:] for name in block.reads}
        later.update(self.result_reads)
        return tuple(name for name in dict.fromkeys(written) if name in later)


def _alone(count: Tensor) -> tuple[Tensor, float]:
    return count, 1.0
