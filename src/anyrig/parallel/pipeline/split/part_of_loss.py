"""The loss of one part of a batch, computed by the module itself.

::

    the whole batch    sum of its losses / number of all targets that count
    one part           sum of its losses / number of all targets that count / its share of samples

The numbers that a module returns are taken as means over samples. With these losses of the parts,
the mean is the loss of the whole batch, however unevenly ignored targets are spread, also where the
module scales the loss or adds another term.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...losses.criterions import Known, recognise

# The number of all targets that count, and the part's share of the samples.
Divisor = tuple["Tensor | float", float]


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
        output = mean.output
        # The sum of many losses in float16 may overflow where their mean does not.
        widens = output.dtype is torch.float16 and not torch.is_autocast_enabled(output.device.type)
        total = mean.known.summed(output.float() if widens else output, mean.target)
        return (total / count / share).to(output.dtype if widens else total.dtype)


@dataclass(frozen=True)
class TargetMean:
    """A call of a criterion that takes the mean over the targets that count."""

    known: Known
    output: Any
    target: Any


def read_mean(criterion: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TargetMean | None:
    """Return what a call computes if it is a mean over the targets that count, else None."""
    known = recognise(criterion)
    if known is None or not known.by_targets:
        return None
    called = criterion.forward if isinstance(criterion, nn.Module) else criterion
    given = dict(inspect.signature(called).bind(*args, **kwargs).arguments)
    output, target = given.pop("input"), given.pop("target")
    if not isinstance(criterion, nn.Module):
        settings = {name: value for name, value in given.items() if value is not None}
        known = recognise(functools.partial(criterion, **settings))
    if known is None or known.settings["reduction"] != "mean":
        return None
    return TargetMean(known, output, target)
