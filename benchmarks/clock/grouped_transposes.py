"""Which groups of a convolution cuDNN transposes, channels last: fitted to whole training steps.

    channels |
             |         x   fewer than the second limit
             |       x x
             |     x x x   fewer than the first limit
             +------------
              three widths of a group

Every combination of the widths and limits below is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np

from .fitting import Coefficients
from .programs import Programs

WIDTHS = range(8, 72, 8)
LIMITS = range(64, 272, 16)


def fit_transposes(base: Coefficients, programs: Programs) -> Coefficients:
    """Return `base` with the widths and limits that predict `programs` best.

    What counts is the mean error in percent, however large: the loss of other fits spares the rows
    for which the library chose a bad kernel, which are the ones to explain here. Among equally good
    values, those are taken that transpose least.
    """

    def values(widths: Sequence[int], limits: Sequence[int]) -> Coefficients:
        group = "convolution.tensor.grouped_transpose"
        return base | {
            f"{group}_widths": [float(width) for width in widths],
            f"{group}_channels": [float(limit) for limit in limits],
        }

    def badness(found: Sequence[Sequence[int]]) -> tuple[float, list[int], list[int]]:
        widths, limits = found
        ratios = programs.predict(values(widths, limits)) / programs.ms
        return float(np.mean(np.abs(ratios - 1))), [-width for width in widths], list(limits)

    found = product(combinations(WIDTHS, 3), combinations(LIMITS, 2))
    return values(*min(found, key=badness))
