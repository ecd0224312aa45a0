"""What the kernels of one step compute: the work records from which the clock predicts times.

A finding asks the cost model what a kernel would take with another dtype, layout or size, so it
needs the shapes. Reading the records costs more than making them, so only the steps whose numbers
are powers of two are read, and only the last of them is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..virtual.build import load_extension


@dataclass(frozen=True)
class StepWorks:
    """The works of one step, in the order in which the clock ran them.

    Attributes:
        step: the number of the step, counted from 1.
        columns: the fields of ``Work`` (``csrc/time/work.h``) as columns of equal length, and
            ``seconds``, what the clock predicted.
        layer_sizes: the sizes of the optimizer's matrices and filters, without repetition.
    """

    step: int
    columns: dict[str, list[float]]
    layer_sizes: list[int] = field(default_factory=list)


class WorkLog:
    """Reads the works of some steps, and keeps those of the last one."""

    def __init__(self) -> None:
        self.works: StepWorks | None = None
        self._layer_sizes: set[int] = set()
        self._is_reading = False

    def note_shapes(self, shapes: Iterable[Iterable[int]]) -> None:
        """Note the shapes of an optimizer's parameters."""
        for shape in map(tuple, shapes):
            if len(shape) > 1:
                self._layer_sizes.update(shape)

    def end_step(self, number: int) -> None:
        """Note that the step with this number, counted from 1, has ended."""
        if self._is_reading:
            columns = load_extension().end_work_log()
            self.works = StepWorks(number, columns, sorted(self._layer_sizes))
        self._is_reading = (number + 1).bit_count() == 1
        if self._is_reading:
            load_extension().begin_work_log()

    def stop(self) -> None:
        """Read nothing from now on."""
        if self._is_reading:
            load_extension().end_work_log()
            self._is_reading = False
