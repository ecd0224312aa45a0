"""`Fit`, the question of `anyrig fit`, and the orders of its rehearsals."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace

from ..errors import RemedyError
from ..programs.program import Program
from ..rehearsal.comparison.prices import Prices
from ..rehearsal.remedies.rehearsed import rehearse_remedies
from ..virtual.rig import VirtualRig
from .fitted_rig import FittedRig
from .rehearsed_value import Order
from .variation import Variation

# The first step makes the optimizer's state, and the third shows whether the second is typical.
STEPS = 3


@dataclass(frozen=True)
class Fit:
    """The question of what fits on each of some rigs.

    Attributes:
        program: the program, with the arguments that do not vary.
        rigs: the rigs.
        variation: what varies; None for nothing.
        prices: the prices of GPUs; None for none.
        step_marker: the function of the script whose calls are steps; None for optimizers.
        processes: how many rehearsals run at a time.
    """

    program: Program
    rigs: tuple[VirtualRig, ...]
    variation: Variation | None
    prices: Prices | None
    step_marker: str | None = None
    processes: int = 1

    def order(self, rig: VirtualRig, value: int | None, steps: int = STEPS) -> Order:
        """Return the order to rehearse with a value on a rig."""
        program = asdict(self.program)
        environment: dict[str, str] = {}
        if self.variation is not None and value is not None:
            words = self.variation.words(value)
            program["arguments"] = (*self.program.arguments, *words)
            environment = dict(self.variation.environment(value))
        program["arguments"] = list(program["arguments"])
        return Order(program, str(rig), steps, self.step_marker, environment)

    def with_remedies(self, row: FittedRig) -> FittedRig:
        """Return a row with what each remedy saves, if its smallest value does not fit."""
        if not row.is_too_small or row.best is None:
            return row
        order = self.order(row.rig, row.best.value)
        try:
            found = rehearse_remedies(
                order.make_program(), row.rig, {**os.environ, **order.environment}
            )
        except RemedyError as error:
            return replace(row, remedies=str(error))
        return replace(row, remedies=found)
