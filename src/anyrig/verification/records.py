"""What one rank did in the steps of a program: `RankRecord`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .piece import Piece

NO_MODULE = "no module"
"""Takes the place of a module's class for a parameter that no module has."""

Samples = tuple[str, ...]
"""The samples of a forward pass: a hash for each, in their order."""


@dataclass(frozen=True)
class LossRecord:
    """A loss on which `backward` was called.

    Attributes:
        value: its value.
        line: where it was called, such as ``train.py:31``; None if unknown.
        divisors: the divisors of the terms that it adds up; empty if unknown.
    """

    value: float
    line: str | None = None
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True)
class StepRecord:
    """What one rank did until an optimizer's `step` returned.

    Attributes:
        gradients: the gradients that the optimizer got, by parameter; a rank that does not have a
            parameter, or no gradient for it, has no entry.
        before: the parameters before the step; kept for the first step only.
        after: the parameters after it.
        losses: the losses of its micro-batches.
        forwards: the samples of each call of a model.
        sample_shape: the shape of a sample; None if unknown.
        labels: for each batch of a loader, how many of its labels count.
        random_states: a hash of the random number generator before each dropout.
        line: where the optimizer's `step` was called.
        after_backward: the gradients right after the last backward pass, of those parameters whose
            gradients the program changed later, such as by a reduction or a clip.
    """

    gradients: Mapping[str, Piece]
    before: Mapping[str, Piece]
    after: Mapping[str, Piece]
    losses: Sequence[LossRecord] = ()
    forwards: Sequence[Samples] = ()
    sample_shape: tuple[int, ...] | None = None
    labels: Sequence[int] = ()
    random_states: Sequence[str] = ()
    line: str | None = None
    after_backward: Mapping[str, Piece] = field(default_factory=dict)


@dataclass(frozen=True)
class ParameterFacts:
    """Where a parameter is in the program.

    Attributes:
        module: the class of its module; `NO_MODULE` if no module has it.
        line: the line that called the module; None if unknown.
        order: the place of the module in the order of the forward pass; -1 if it was not called.
        stage: the stage of `torch.distributed.pipelining` that has it; None outside of all stages.
    """

    module: str
    line: str | None = None
    order: int = -1
    stage: int | None = None


@dataclass(frozen=True)
class LoadedBatch:
    """A batch that a data loader delivered.

    Attributes:
        iteration: which iteration over a loader of the program it belongs to, from 0.
        number: the number of the batch in that iteration.
        step: the step in which it was loaded.
        batch: the batch, on the CPU; None for the end of the iteration. In what one device is to
            load, a `Recollation` for a batch that the loader's collate function has to make.
        indices: the indices of its samples in the data set; None if the loader has no lists of
            indices.
        is_recollated: whether a `Recollation` made the batch.
    """

    iteration: int
    number: int
    step: int
    batch: Any
    indices: tuple[Any, ...] | None = None
    is_recollated: bool = False


@dataclass(frozen=True)
class RankRecord:
    """What one rank of a program did.

    Attributes:
        rank: the rank; 0 in a program of one process.
        world_size: the number of ranks.
        steps: its steps.
        parameters: where each parameter is.
        dtypes: the floating-point types of the parameters and of the computation of the loss.
        batch_norms: the names of batch norms that use the samples of one rank alone.
        has_batch_statistics: whether the model normalises by statistics of a batch.
        shards_data: whether the ranks divide samples and parameters alike, as FSDP does; then
            ranks with the same samples repeat work.
        draws_random_numbers: whether a forward pass drew random numbers other than for dropout.
        has_dropout: whether a forward pass had dropout, which verification turns off.
        batches: what data loaders delivered.
        failure: why the run ended before its steps, if verification itself ended it; else None.
        loader_lengths: the lengths of data loaders, in the order in which they were first read.
    """

    rank: int
    world_size: int
    steps: tuple[StepRecord, ...]
    parameters: Mapping[str, ParameterFacts] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    batch_norms: tuple[str, ...] = ()
    has_batch_statistics: bool = False
    shards_data: bool = False
    draws_random_numbers: bool = False
    has_dropout: bool = False
    batches: tuple[LoadedBatch, ...] = ()
    failure: str | None = None
    loader_lengths: tuple[int, ...] = ()
