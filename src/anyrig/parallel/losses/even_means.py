"""Means over targets that are one term of a loss, in parts that are computed one after another.

::

    part 0   2 samples, 12 targets that count    6 for each sample
    part 1   2 samples,  3 targets that count    1.5: the loss is refused

Parts are weighted by samples, which is right for such means if these rates are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...errors import BatchError
from .loss_part import LossPart

_REMEDY = (
    "Return (sum, count) from the loss; or compute it in the module's forward, which gets the "
    "targets as an argument"
)
_CLOSE = 1e-6  # relative; class weights are sums in float32


def rate_of_targets(part: LossPart) -> torch.Tensor | None:
    """Return how many targets count for each sample; None if the loss has no mean among others.

    If there are several means, it is a number that is equal for equal rates.
    """
    if not part.targets or not part.count:
        return None
    total = sum(number * targets for number, targets in enumerate(part.targets, 1))
    return torch.as_tensor(total / part.count)


def targets_of(parts: Sequence[LossPart]) -> list[torch.Tensor]:
    """Return what each mean over targets divides by in all parts together."""
    device = parts[0].value.device
    columns = zip(*(part.targets for part in parts), strict=True)
    return [torch.stack([each.to(device) for each in column]).sum() for column in columns]


def require_even(rates: Sequence[float], remedy: str = _REMEDY) -> None:
    """Raise BatchError, with `remedy`, unless the rates of a batch's parts are equal."""
    low, high = min(rates, default=0.0), max(rates, default=0.0)
    if math.isclose(low, high, rel_tol=_CLOSE):
        return
    raise BatchError(
        "a mean is taken over the targets that are not ignored, but the parts of a batch differ in "
        f"how many they have: from {low:g} to {high:g} for each sample. Parts are weighted by "
        f"samples, which is wrong for such a mean. {remedy}"
    )
