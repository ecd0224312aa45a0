"""The kinds of memory."""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):
    """The purpose of a block of memory.

    Every allocated block has one kind. `CACHED` and `OUTSIDE` are not kinds of blocks.
    """

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    BUFFERS = "buffers"
    ACTIVATIONS = "activations"  # kept for a backward pass
    BATCH = "batch"
    OTHER = "other tensors"  # alive for longer than a step, and none of the above
    TEMPORARIES = "temporaries"  # freed before the step ends
    WORKSPACES = "workspaces"  # owned by libraries such as cuBLAS, not by a tensor
    CACHED = "cached"  # free, but kept by the caching allocator
    OUTSIDE = "outside PyTorch"  # the CUDA context, other libraries, other processes
