"""Find memory that grows from step to step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..observe.source_line import SourceLine
from ..units import format_bytes
from .block import Block
from .device_footprint import DeviceFootprint
from .device_record import DeviceRecord
from .holders import Holder, hold_in_objects
from .kinds import Kind

# A line leaks if its bytes have grown in each of at least this many last steps. A holder holds a
# leak if it holds memory of at least this many calls of the model.
FEWEST_STEPS = 3
_KINDS = (Kind.ACTIVATIONS, Kind.BATCH, Kind.OTHER, Kind.TEMPORARIES)


@dataclass(frozen=True)
class Leak:
    """Memory that grew in each of the last steps.

    Attributes:
        sentence: what holds the memory, and what to change.
        line: the line to change: the line that adds to a variable, if known, otherwise
            `allocated_at`.
        allocated_at: the line that allocates all or most of the memory.
        bytes_per_step: the growth in the last step.
        steps: the number of consecutive steps, up to the last one, in which the memory grew.
    """

    sentence: str
    line: SourceLine
    allocated_at: SourceLine
    bytes_per_step: int
    steps: int

    def __str__(self) -> str:
        """Return the leak in one line."""
        return f"{self.line}: {self.line.text}: {self.sentence}"


@dataclass(frozen=True)
class _Part:
    """The part of a line's growth that one holder holds; None for C++ code such as a graph."""

    holder: Holder | None
    line: SourceLine
    bytes_per_step: int
    steps: int


def find_leaks(
    steps: Sequence[Sequence[DeviceFootprint]],
    records: Sequence[DeviceRecord],
    holders: Sequence[Holder],
) -> tuple[Leak, ...]:
    """Return the leaks of all devices, fastest growth first.

    Args:
        steps: the devices' footprints of each step.
        records: the record of each device at the end of the last step.
        holders: what held memory then, the most specific first.
    """
    parts = [part for record in records for part in _find_parts(steps, record, holders)]
    of_graphs = [part for part in parts if part.holder is not None and part.holder.nodes]
    largest = max(of_graphs, key=lambda part: part.bytes_per_step, default=None)
    by_holder: dict[Holder | None, list[_Part]] = {}
    for part in parts:
        # Attribute what no holder holds to the largest graph: a graph keeps the batches, too.
        holder = part.holder or (largest.holder if largest else None)
        by_holder.setdefault(holder, []).append(part)
    leaks = itertools.starmap(_describe, by_holder.items())
    return tuple(sorted(leaks, key=lambda leak: -leak.bytes_per_step))


def _describe(holder: Holder | None, parts: Sequence[_Part]) -> Leak:
    largest = max(parts, key=lambda part: part.bytes_per_step)
    growth = sum(part.bytes_per_step for part in parts)
    steps = max(part.steps for part in parts)
    keeps = f"keeps {format_bytes(growth)} more after each of the last {steps} steps"
    if holder is None:
        sentence = f"a graph {keeps}: find what keeps the graph, such as a hook"
        return Leak(sentence, largest.line, largest.line, growth, steps)
    sentence = f"{holder.subject} {keeps}: {holder.cure}"
    return Leak(sentence, holder.line or largest.line, largest.line, growth, steps)


def _find_parts(
    steps: Sequence[Sequence[DeviceFootprint]], record: DeviceRecord, holders: Sequence[Holder]
) -> Iterator[_Part]:
    timeline = record.timeline
    device = timeline.device
    ends = [each.end for step in steps for each in step if each.device == device]
    by_line = [sum((Counter(end.by_line(kind)) for kind in _KINDS), Counter()) for end in ends]
    for line in by_line[-1] if by_line else ():
        counts = [end[line] for end in by_line]
        growths = [after - before for before, after in itertools.pairwise(counts)]
        in_a_row = sum(1 for _ in itertools.takewhile(lambda each: each > 0, growths[::-1]))
        if line is None or in_a_row < FEWEST_STEPS:
            continue
        blocks = [
            block
            for block in timeline.blocks
            if block.died is None and block.origin is not None and block.origin.line == line
        ]
        divided = dict(divide_among_holders(blocks, holders))
        if None in divided:
            others = hold_in_objects(
                {block.data_address or block.address for block in divided[None]}
            )
            divided = dict(divide_among_holders(blocks, [*holders, others]))
        total = sum(block.bytes for held in divided.values() for block in held)
        for holder, held in divided.items():
            own = sum(block.bytes for block in held)
            yield _Part(holder, line, round(growths[-1] * own / total), in_a_row)


def divide_among_holders(
    blocks: Sequence[Block], holders: Sequence[Holder]
) -> Iterator[tuple[Holder | None, list[Block]]]:
    """Yield each holder of blocks of several calls of the model, and these blocks.

    A variable that each pass overwrites is left out: it holds only the blocks of the last call.
    """
    rest = list(blocks)
    for holder in (*holders, None):
        held = [block for block in rest if holder is None or holder.holds(block)]
        if len({block.origin.call for block in held if block.origin}) >= FEWEST_STEPS:
            yield holder, held
            rest = [block for block in rest if block not in held]
