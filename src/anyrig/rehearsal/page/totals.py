"""The time of each operator, module and line, added up over the intervals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .kinds import KINDS
from .lanes import kind_code


@dataclass
class Total:
    """The sum over the intervals with one kind, name, module and line.

    Attributes:
        kind: one of `KINDS`.
        name: an index into the document's texts, or -1.
        module: likewise.
        line: likewise.
        count: the number of intervals of the whole run.
        seconds: their sum.
        bytes: the bytes that they moved, or 0.
        typical_seconds: the sum over the typical steps.
    """

    kind: str
    name: int
    module: int
    line: int
    count: int = 0
    seconds: float = 0.0
    bytes: int = 0
    typical_seconds: float = 0.0

    def add(self, other: Total) -> None:
        """Add the sums of `other`."""
        self.count += other.count
        self.seconds += other.seconds
        self.bytes += other.bytes
        self.typical_seconds += other.typical_seconds


def add_up(facts: Mapping[str, Any]) -> list[Total]:
    """Return the totals, the one with the most time first."""
    columns = facts["intervals"]
    steps = sorted(facts["steps"], key=lambda step: step["begin_seconds"])
    begins: Sequence[float] = [step["begin_seconds"] for step in steps]
    typical_step = facts["typical_step"]
    typical_numbers = set(typical_step["of_steps"]) if typical_step else set()
    is_typical = [step["number"] in typical_numbers for step in steps]
    ends = [step["end_seconds"] for step in steps]
    kind_of = {kind: KINDS[kind_code(facts, kind)] for kind in set(columns["kind"])}
    totals: dict[tuple[str, int, int, int], Total] = {}
    for begin, seconds, kind, name, module, line, count in zip(
        columns["begin_seconds"],
        columns["seconds"],
        columns["kind"],
        columns["name"],
        columns["module"],
        columns["line"],
        columns["bytes"],
        strict=True,
    ):
        key = (kind_of[kind], name, module, line)
        total = totals.get(key)
        if total is None:
            total = totals[key] = Total(*key)
        total.count += 1
        total.seconds += seconds
        total.bytes += max(count, 0)
        step = bisect_right(begins, begin) - 1
        if step >= 0 and is_typical[step] and begin < ends[step]:
            total.typical_seconds += seconds
    return sorted(totals.values(), key=lambda total: -total.seconds)
