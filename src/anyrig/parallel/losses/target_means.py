"""Calls of PyTorch's criterions that take the mean over the targets that are not ignored."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .criterions import Known, recognise


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
