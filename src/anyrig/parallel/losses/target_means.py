"""Calls of PyTorch's criterions whose mean is over the targets that are not ignored."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .criterions import Known, recognise


@dataclass(frozen=True)
class TargetMean:
    """A call of a criterion whose mean is over the targets that count."""

    known: Known
    output: Any
    target: Any

    def count(self, device: torch.device) -> Tensor:
        """Return what the mean divides by, on `device`."""
        number = self.known.count(self.output, self.target, self.known.settings)
        # These devices have no float64.
        wide = torch.float32 if device.type in ("mps", "xpu") else torch.float64
        return torch.as_tensor(number, dtype=wide, device=device)


def read_mean(
    criterion: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    reduction: Literal["mean", "sum"] = "mean",
) -> TargetMean | None:
    """Return what a call computes if it is a mean over the targets that count, else None.

    With ``reduction="sum"``, return it if it is a sum over these targets.
    """
    known = recognise(criterion)
    if known is None or not known.by_targets:
        return None
    called = criterion.forward if isinstance(criterion, nn.Module) else criterion
    try:
        given = dict(inspect.signature(called).bind(*args, **kwargs).arguments)
    except TypeError:  # the call will raise it
        return None
    output, target = given.pop("input"), given.pop("target")
    if not isinstance(criterion, nn.Module):
        settings = {name: value for name, value in given.items() if value is not None}
        known = recognise(functools.partial(criterion, **settings))
    if known is None or known.settings["reduction"] != reduction:
        return None
    return TargetMean(known, output, target)


def scale_mean(mean: Tensor, own: Tensor, total: Tensor, share: float) -> Tensor:
    """Return a part's mean so that the mean of all parts over samples is that of the whole batch.

    Args:
        mean: of this part; NaN if nothing counts in it.
        own: what it divides by.
        total: the same of all parts together.
        share: the part's share of all samples.
    """
    with torch.no_grad():
        # If nothing counts in the whole batch, its loss is NaN and its gradients are zero.
        is_defined = (own > 0) | (total == 0)
        factor = torch.where(own > 0, own / total / share, 1.0) if share else own * 0
        factor = factor.to(mean.dtype)
    # PyTorch's gradients of an undefined mean are zero already, and NaN * 0 is NaN.
    return torch.where(is_defined, mean, 0.0) * factor


def sum_of_mean(mean: Tensor, own: Tensor) -> Tensor:
    """Return the sum of the losses whose mean was taken over `own` targets; zero if there are none.

    The sum has at least float32, in which that of a large batch does not overflow.
    """
    wide = mean.float() if mean.dtype in (torch.float16, torch.bfloat16) else mean
    return torch.where(own > 0, wide, 0.0) * own.to(wide.dtype)
