"""Mean errors of predicted times, and which of them got worse."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_WORSE = 2.0  # points of the mean error
Ratio = tuple[str, str, float]  # GPU, kind, predicted over measured time


@dataclass(frozen=True)
class MeanError:
    """The mean error of predicted times of one kind on one GPU, in percent."""

    gpu: str
    kind: str
    compared: int
    mean: float


def mean_errors(ratios: Iterable[Ratio]) -> list[MeanError]:
    errors = defaultdict(list)
    for gpu, kind, ratio in ratios:
        errors[gpu, kind].append(100 * abs(ratio - 1))
    return [
        MeanError(gpu, kind, len(found), round(statistics.mean(found), 1))
        for (gpu, kind), found in sorted(errors.items())
    ]


def lines_of_worse(found: Sequence[MeanError], known: Sequence[MeanError]) -> list[str]:
    """Return a line for each mean error that got worse, or that `known` does not have."""
    before = {(error.gpu, error.kind): error.mean for error in known}
    lines = []
    for error in found:
        name = f"{error.gpu}, {error.kind}"
        was = before.get((error.gpu, error.kind))
        if was is None:
            lines.append(f"{name}: mean error {error.mean} %, not known before")
        elif error.mean >= was + MOST_WORSE:
            lines.append(f"{name}: mean error {error.mean} %, was {was} %")
    return lines
