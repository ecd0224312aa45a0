"""A verdict as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..units import format_count

if TYPE_CHECKING:
    from .verdict import Finding, Verdict

_HEADS = {
    0: "the same on the rig and on one device",
    1: "not the same on the rig and on one device",
    2: "could not be compared",
}


def describe(verdict: Verdict) -> str:
    """Return a verdict as lines of text."""
    lines = [f"anyrig verify: {_HEADS[verdict.exit_code]}"]
    if verdict.reason is not None:
        lines.append(f"  {verdict.reason}")
    if verdict.finding is not None:
        lines += _finding_lines(verdict.finding)
    if verdict.steps and verdict.bound is not None:
        lines.append(
            f"  compared: {format_count(verdict.steps, 'step')} of "
            f"{format_count(verdict.world_size, 'rank')}, in {verdict.dtype}; differences up to "
            f"{verdict.bound:.0e} of a tensor's norm per step count as rounding"
        )
    lines += [f"  note: {note}" for note in verdict.notes]
    return "\n".join(lines)


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
