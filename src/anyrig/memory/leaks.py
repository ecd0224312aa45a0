"""Find memory that grows from step to step, and what holds it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor

from ..units import format_bytes
from .block import Block
from .census import find_instances, tensors_of_variable, variables_of
from .device_footprint import DeviceFootprint
from .device_record import DeviceRecord
from .kept_variables import KeptVariable, find_kept_variables
from .kinds import Kind
from .source_line import SourceLine, is_library_code
from .storages import storages_of

# A line whose bytes have grown in each of the last steps, at least so many, leaks.
_FEWEST_GROWING_STEPS = 3
_KINDS = (Kind.ACTIVATIONS, Kind.BATCH, Kind.OTHER, Kind.TEMPORARIES)
_MOST_NAMED = 3


@dataclass(frozen=True)
class Leak:
    """Memory that grew in each of the last steps.

    Attributes:
        sentence: what holds the memory, and what to change.
        line: the line to change: the one that adds to a variable, if it is known, otherwise
            `allocated_at`.
        allocated_at: the line that allocates the memory.
        bytes_per_step: the growth in the last step.
        steps: the number of steps in a row, until the last one, after which there was more.
    """

    sentence: str
    line: SourceLine
    allocated_at: SourceLine
    bytes_per_step: int
    steps: int

    def __str__(self) -> str:
        """Return the leak in one line."""
        return f"{self.line}: {self.line.text}: {self.sentence}"


def find_leaks(
    steps: Sequence[Sequence[DeviceFootprint]],
    records: Sequence[DeviceRecord],
    holders: Holders,
) -> tuple[Leak, ...]:
    """Return the leaks of all devices, fastest growth first.

    Args:
        steps: the devices' footprints of each step.
        records: the record of each device at the end.
        holders: what may hold memory at the end.
    """
    found = []
    for record in records:
        device = record.timeline.device
        ends = [
            footprint.end.by_line_of(_KINDS)
            for step in steps
            for footprint in step
            if footprint.device == device
        ]
        for line in ends[-1] if ends else ():
            series = [end.get(line, 0) for end in ends]
            growths = [after - before for before, after in itertools.pairwise(series)]
            last = growths[-_FEWEST_GROWING_STEPS:]
            if line is None or len(last) < _FEWEST_GROWING_STEPS or min(last) <= 0:
                continue
            blocks = [
                block
                for block in record.timeline.blocks
                if block.died is None and block.origin is not None and block.origin.line == line
            ]
            in_a_row = sum(1 for _ in itertools.takewhile(lambda each: each > 0, growths[::-1]))
            keeps = f"keeps {format_bytes(last[-1])} more after each of the last {in_a_row} steps"
            sentence, change = holders.describe(blocks, keeps)
            found.append(Leak(sentence, change or line, line, last[-1], in_a_row))
    merged: dict[tuple[SourceLine, str], Leak] = {}
    for leak in sorted(found, key=lambda leak: -leak.bytes_per_step):
        # Several lines of one graph have one holder: the line that keeps the most names it.
        merged.setdefault((leak.line, leak.sentence.split(" keeps ")[0]), leak)
    return tuple(merged.values())


class Holders:
    """The variables, reference cycles and tracebacks that hold tensors when tracking ends."""

    def __init__(self, frame: FrameType | None) -> None:
        self._variables = [*find_kept_variables(frame)]
        self._names: dict[int, str] = {}
        for name, tensor in variables_of(frame):
            self._note(name, tensor, self._names)
        running: set[FrameType] = set()
        while frame is not None:
            running.add(frame)
            frame = frame.f_back
        self._tracebacks = dict(_tensors_of_tracebacks(running))
        self._cycles: dict[int, str] = {}
        for text, tensor in _tensors_of_cycles():
            self._note(text, tensor, self._cycles)

    @staticmethod
    def _note(text: str, tensor: Tensor, texts: dict[int, str]) -> None:
        for storage in storages_of(tensor):
            texts.setdefault(storage.data_ptr(), text)

    def describe(self, blocks: Collection[Block], keeps: str) -> tuple[str, SourceLine | None]:
        """Return what holds blocks, with the cure, and the line to change if it is known."""
        addresses = {block.data_address or block.address for block in blocks}
        variable = self._find_variable(addresses)
        if variable is None and any(b.origin is not None and b.origin.is_recorded for b in blocks):
            variable = next((each for each in self._variables if each.has_graphs), None)
        if variable is not None:
            if variable.has_graphs:
                return variable.describe_graph(keeps), variable.line
            return f"{variable.name} {keeps}: drop what is not needed again", variable.line
        for texts, cure in (
            (self._tracebacks, "end the handling of the exception, or clear its __traceback__"),
            (self._cycles, "break the cycle, as with weakref.ref, or call gc.collect()"),
            (self._names, "delete it when it is not needed again"),
        ):
            named = [*dict.fromkeys(text for each, text in texts.items() if each in addresses)]
            if named:
                return f"{', '.join(named[:_MOST_NAMED])} {keeps}: {cure}", None
        return f"what this line allocates stays, and {keeps}: find what refers to it", None

    def _find_variable(self, addresses: Collection[int]) -> KeptVariable | None:
        for variable in self._variables:
            for tensor in variable.tensors:
                if any(storage.data_ptr() in addresses for storage in storages_of(tensor)):
                    return variable
        return None


def _tensors_of_tracebacks(running: Collection[FrameType]) -> Iterator[tuple[int, str]]:
    """Yield the addresses of tensors in functions that only a traceback keeps, and their names."""
    seen: set[FrameType] = set()
    for traceback in find_instances(TracebackType)[TracebackType]:
        frame = traceback.tb_frame
        if frame in running or frame in seen or is_library_code(frame.f_code):
            continue
        seen.add(frame)
        for name, value in list(frame.f_locals.items()):
            for text, tensor in tensors_of_variable(name, value):
                where = f"the traceback of an exception, through {text} in {frame.f_code.co_name},"
                for storage in storages_of(tensor):
                    yield storage.data_ptr(), where


def _tensors_of_cycles() -> Iterator[tuple[str, Tensor]]:
    """Collect the garbage, and yield the tensors in it with what holds them."""
    flags, before = gc.get_debug(), len(gc.garbage)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(flags)
    garbage: list[Any] = gc.garbage[before:]
    del gc.garbage[before:]
    for each in garbage:
        if type(each) not in (dict, type) and type(getattr(each, "__dict__", None)) is dict:
            for _, tensor in tensors_of_variable("", vars(each)):
                yield f"a reference cycle with a {type(each).__name__}", tensor
    for each in garbage:
        if issubclass(type(each), Tensor):
            yield "a reference cycle", each
