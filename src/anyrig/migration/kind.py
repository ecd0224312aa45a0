"""What a value is, as far as the text of a program shows."""

from __future__ import annotations

from enum import Flag, auto


class Kind(Flag):
    """What a value is; several flags may hold at once, and none if nothing is known."""

    UNKNOWN = 0
    TENSOR = auto()
    SCALAR = auto()
    """A tensor without dimensions."""
    FRESH = auto()
    """A tensor without a graph, that nothing else refers to."""
    LOSS = auto()
    """A tensor with a graph, from a loss function, or with `backward()` called on it."""
    PER_SAMPLE = auto()
    """A loss that is not reduced: it has an entry for each sample."""
    MASK = auto()
    """A tensor of booleans."""
    WHOLE = auto()
    """A tensor of integers."""
    LEAF = auto()
    """A tensor made with requires_grad, or a parameter."""
    BATCH = auto()
    """A part of what a loader yields."""
    NUMBER = auto()
    MODULE = auto()
    CRITERION = auto()
    PARALLEL = auto()
    """A module in nn.DataParallel."""
    DISTRIBUTED = auto()
    """A module in DistributedDataParallel."""
    OPTIMIZER = auto()
    LOADER = auto()
    SAMPLER = auto()
