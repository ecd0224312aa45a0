"""`Verdict`, what a verification found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..units import format_count

_AGREE = "the same on the rig and on one device, and wrong on both, or wasteful"
_HEADS = {
    0: "the same on the rig and on one device",
    1: "not the same on the rig and on one device",
    2: "could not be compared",
}


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
        """Return lines of text for people."""
        head = _HEADS[self.exit_code]
        if self.finding is not None and self.finding.kind is None:
            head = _AGREE
        lines = [f"anyrig verify: {head}"]
        if self.reason is not None:
            lines.append(f"  {self.reason}")
        if self.finding is not None:
            lines += _finding_lines(self.finding)
        if self.steps and self.bound is not None:
            many = self.world_size > 1
            ranks = format_count(self.world_size, "rank") if many else "one process"
            lines.append(
                f"  compared: {format_count(self.steps, 'step')} of {ranks}, in {self.dtype}; "
                f"differences up to {self.bound:.0e} of a tensor's norm per step count as rounding"
            )
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return all facts as an object for JSON."""
        return asdict(self)


def _finding_lines(finding: Finding) -> list[str]:
    lines = []
    where = []
    if finding.name is not None:
        place = f" of {finding.module}" if finding.module else ""
        where.append(f"{finding.kind} {finding.name}{place}")
    if finding.line is not None:
        where.append(finding.line)
    if finding.backward_line is not None:
        where.append(f"backward in {finding.backward_line}")
    if where:
        lines.append(f"  step {finding.step}: {', '.join(where)}")
    if finding.error is not None:
        others = f", as {_others(finding.others)}" if finding.others else ""
        lines.append(f"    differs by {finding.error:.2g} of its norm{others}")
    cause = finding.cause
    lines.append(f"    {'' if cause.is_certain else 'probably: '}{cause.text}")
    lines.append(f"    change: {cause.remedy}")
    return lines


def _others(count: int) -> str:
    return "does 1 other tensor" if count == 1 else f"do {count} other tensors"
