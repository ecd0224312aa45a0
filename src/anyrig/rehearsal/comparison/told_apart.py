"""Which rigs of a comparison cannot be told apart, as their times may be off by more.

The errors of a program on two GPUs are correlated, since the same kernels are mispredicted in the
same way. So what counts is not whether the intervals of two rigs overlap but how far the errors of
one program on two GPUs were apart, where enough programs were measured on several GPUs. Otherwise
the errors count as independent, and the intervals are combined.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..facts import StepInterval
from .compared_rig import ComparedRig


@dataclass(frozen=True)
class Alike:
    """Two rigs that cannot be told apart.

    Attributes:
        rigs: the rigs.
        factor: by which factor one is faster.
        error: the factor up to which the errors of nine of ten programs differ between the rigs.
    """

    rigs: tuple[str, str]
    factor: float
    error: float

    def __str__(self) -> str:
        first, second = self.rigs
        return (
            f"{first} and {second} cannot be told apart: one is faster by a factor of "
            f"{self.factor:.2f}, and the errors of 9 of 10 programs differ by up to "
            f"{self.error:.2f} between such rigs"
        )


def find_alike(rows: Sequence[ComparedRig]) -> list[Alike]:
    """Return the pairs of rigs that cannot be told apart, by samples per second or by steps.

    A rig is left out if it has no step, or if it is not known how far its times are off.
    """
    per_step = any(row.samples_per_second is None for row in rows if row.step_seconds is not None)
    found = []
    for first, second in itertools.combinations(rows, 2):
        one, other = _rate(first, per_step), _rate(second, per_step)
        if one is None or other is None:
            continue
        error = error_between(first, second)
        factor = max(one / other, other / one)
        if error is not None and factor <= error:
            found.append(Alike((first.rig, second.rig), factor, error))
    return found


def error_between(first: ComparedRig, second: ComparedRig) -> float | None:
    """Return the factor by which the ratio of two rigs' times may be off; None if unknown."""
    one, other = first.step_interval, second.step_interval
    if one is None or other is None:
        return None
    if one.apart is not None and other.apart is not None:
        return max(one.apart, other.apart)
    widths = _log_error(first.step_seconds, one), _log_error(second.step_seconds, other)
    if widths[0] is None or widths[1] is None:
        return None
    return math.exp(math.hypot(widths[0], widths[1]))


def _rate(row: ComparedRig, per_step: bool) -> float | None:
    if not row.step_seconds:
        return None
    return 1 / row.step_seconds if per_step else row.samples_per_second


def _log_error(seconds: float | None, interval: StepInterval) -> float | None:
    if not seconds or not interval.low_seconds or not interval.high_seconds:
        return None
    return max(math.log(interval.high_seconds / seconds), math.log(seconds / interval.low_seconds))
