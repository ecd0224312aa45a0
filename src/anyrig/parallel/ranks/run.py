"""The state of one model in a process group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ...processes.group.membership import Context
from ..accumulation import Accumulation
from ..losses.checked_means import CheckedCalls
from .exchange import Exchange
from .fixed_parameters import FixedParameters
from .passes import Passes
from .states import Buffers


@dataclass(eq=False)
class Run:
    """The state of one model in a process group; a copy of the model has its own."""

    context: Context  # the state of the process group
    number: int  # the model's number; ranks spread their models in the same order
    buffers: Buffers
    fixed: FixedParameters  # checks for changes of the module that the engine cannot follow
    synchronized: list[torch.nn.SyncBatchNorm]  # wait for the other ranks in training mode
    accumulation: Accumulation | None  # if the model was spread with `accumulate`
    passes: Passes | None = None  # the backward passes; None if no parameter learns
    forwards: int = 0  # the number of forwards in which ranks met
    # The arguments of one sample, with a target and without.
    sample_of: dict[bool, Any] = field(default_factory=dict)
    checked: CheckedCalls = field(default_factory=CheckedCalls)
    joining: bool = False  # whether a loop in `join` is running
    last: Exchange | None = None  # the exchange of the last forward in that loop
