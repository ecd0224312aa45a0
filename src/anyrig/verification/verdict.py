"""`Verdict`, what a verification found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cause:
    """Why two runs differ, or why their agreement says nothing.

    Attributes:
        code: a short name, the same in every version.
        text: what happened.
        remedy: what to change.
        is_certain: whether the numbers of the runs prove it.
        tensor: the tensor to look at, if it is not the first that differs.
    """

    code: str
    text: str
    remedy: str
    is_certain: bool = True
    tensor: str | None = None


@dataclass(frozen=True)
class Finding:
    """The first tensor that differs, or no tensor in particular.

    Attributes:
        cause: why.
        kind: initial value, gradient, parameter or loss; None for no tensor in particular.
        name: the tensor's parameter; None for no tensor in particular.
        module: the class of its module.
        line: the line of the program that called the module, or the optimizer's step for a
            parameter, such as ``train.py:31``; None if unknown.
        backward_line: the line of ``backward``; None if unknown.
        step: the step, from 1.
        error: the norm of the difference, relative to the tensor on one device.
        others: how many other tensors of this kind differ in this step.
    """

    cause: Cause
    kind: str | None = None
    name: str | None = None
    module: str | None = None
    line: str | None = None
    backward_line: str | None = None
    step: int = 1
    error: float | None = None
    others: int = 0


@dataclass(frozen=True)
class Verdict:
    """Whether a program trains on a rig as on one device.

    Attributes:
        exit_code: 0 if it does, 1 if it does not, 2 if that could not be compared.
        finding: what differs; None unless `exit_code` is 1.
        reason: why the runs could not be compared; None unless `exit_code` is 2.
        steps: how many steps were compared.
        world_size: the number of ranks.
        dtype: the coarsest floating-point type of the computation.
        bound: the bound for differences by rounding.
        losses: for each step, the mean of the ranks' losses, and the loss on one device.
        notes: what else was seen.
    """

    exit_code: int
    finding: Finding | None = None
    reason: str | None = None
    steps: int = 0
    world_size: int = 1
    dtype: str | None = None
    bound: float | None = None
    losses: Sequence[tuple[float | None, float | None]] = ()
    notes: Sequence[str] = field(default=())

    def __bool__(self) -> bool:
        """Whether the runs are the same."""
        return self.exit_code == 0

    def __str__(self) -> str:
        from .text import describe

        return describe(self)

    def as_json(self) -> dict[str, Any]:
        """Return all facts as an object for JSON."""
        from dataclasses import asdict

        return asdict(self)
