"""The loss of one part of a batch, computed by the module itself.

::

    the whole batch    sum of its losses / number of all targets that count
    one part           sum of its losses / number of all targets that count / its share of samples

The numbers that a module returns are taken as means over samples. With these losses of the parts,
the mean is the loss of the whole batch, however unevenly ignored targets are spread, even where the
module scales the loss or adds another term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ....losses.target_means import read_mean, scale_mean

# The number of all targets that count, and the part's share of the samples.
Divisor = tuple[Tensor, float]


@dataclass(frozen=True)
class PartOfLoss:
    """Computes the mean that a criterion of PyTorch takes over targets, for one part of a batch."""

    __name__ = __qualname__ = "part_of_loss"

    def __call__(self, divisor: Divisor | None, criterion: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the part's loss; without a divisor, the part is the whole batch."""
        mean = None if divisor is None else read_mean(criterion, args, kwargs)
        if divisor is None or mean is None:
            return criterion(*args, **kwargs)
        count, share = divisor
        value = criterion(*args, **kwargs)
        own = mean.count(value.device)
        return scale_mean(value, own, count.to(own.device, own.dtype), share)
