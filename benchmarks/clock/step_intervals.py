"""The intervals of predicted steps: quantiles of the residuals, by kind of step.

A kind with few programs gives no quantiles: its steps have those of the kind that contains it.
"""

from __future__ import annotations

import itertools
import math
import statistics
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from anyrig.hardware import Known, StepErrors, StepKind, step_errors_of

from .step_residuals import Residual

FEWEST_PROGRAMS = 20  # of which the 5 and 95 % quantiles leave out one at each end
PARTS = 5  # of the programs, for the calibration
HELD = 0.9  # of the programs


Table = Mapping[StepKind, StepErrors]


def intervals_of(residuals: Sequence[Residual]) -> Table:
    """Return the errors of all kinds that have enough programs."""
    table = _quantiles(residuals)
    elsewhere = _power_elsewhere(residuals)
    return {kind: replace(errors, elsewhere=elsewhere) for kind, errors in table.items()}


def calibrate(residuals: Sequence[Residual]) -> list[StepErrors]:
    """Return the errors of each residual's kind that the programs of other names give."""
    return _of_the_others(residuals, part_of, intervals_of)


def part_of(residual: Residual) -> int:
    name = residual.program.partition(",")[0]
    return zlib.crc32(name.encode()) % PARTS


def holds(errors: StepErrors, residual: Residual) -> bool:
    """Return whether a residual lies in the interval."""
    return errors.low <= residual.ratio <= errors.high


def _of_the_others(
    residuals: Sequence[Residual],
    part: Callable[[Residual], object],
    make: Callable[[Sequence[Residual]], Table],
) -> list[StepErrors]:
    """Return the errors of each residual's kind that the residuals of the other parts give."""
    tables = {
        own: make([one for one in residuals if part(one) != own])
        for own in dict.fromkeys(map(part, residuals))
    }
    found = [step_errors_of(one.kind, tables[part(one)]) for one in residuals]
    assert None not in found
    return [errors for errors in found if errors is not None]


def _power_elsewhere(residuals: Sequence[Residual]) -> float:
    """Return how much wider intervals must be to hold on a GPU whose programs took no part.

    GPUs of which whole steps were measured have programs, and do not count.
    """
    judging = [one for one in residuals if one.kind.known is not Known.STEPS]
    found = _of_the_others(judging, lambda one: one.gpu, _quantiles)
    needed = sorted(
        math.log(one.ratio) / math.log(errors.low if one.ratio < 1 else errors.high)
        for one, errors in zip(judging, found, strict=True)
    )
    return max(1.0, statistics.quantiles(needed, n=100)[round(100 * HELD) - 1])


def _quantiles(residuals: Iterable[Residual]) -> Table:
    by_kind: dict[StepKind, list[Residual]] = defaultdict(list)
    for residual in residuals:
        for kind in dict.fromkeys(residual.kind.wider()):
            by_kind[kind].append(residual)
    table = {}
    for kind, found in sorted(by_kind.items(), key=_place):
        if len(found) >= FEWEST_PROGRAMS:
            low, high = _tails([one.ratio for one in found])
            gpus = tuple(sorted({one.gpu for one in found}))
            bounds = min(low, 1.0), max(high, 1.0), _apart(found)
            table[kind] = StepErrors(kind, len(found), gpus, *bounds, elsewhere=1.0)
    return table


def _place(item: tuple[StepKind, object]) -> tuple[str, ...]:
    kind = item[0]
    return kind.known.value, *map(
        str, (kind.on_matrix_units, kind.convolves, kind.trains, kind.gpu)
    )


def _tails(values: Sequence[float]) -> tuple[float, float]:
    """Return the 5 and the 95 % quantiles."""
    twentieths = statistics.quantiles(values, n=20)
    return twentieths[0], twentieths[-1]


def _apart(residuals: Iterable[Residual]) -> float | None:
    """Return the 90 % quantile of the factor between a program's errors on two GPUs."""
    by_program: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in residuals:
        by_program[one.group, one.program][one.gpu] = math.log(one.ratio)
    factors = [
        abs(first - second)
        for by_gpu in by_program.values()
        for first, second in itertools.combinations(by_gpu.values(), 2)
    ]
    if len(factors) < FEWEST_PROGRAMS:
        return None
    return math.exp(statistics.quantiles(factors, n=10)[-1])
