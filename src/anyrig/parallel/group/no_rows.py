"""A batch without rows: a rank has one when the data has run out for it and not for others.

::

    x: no rows ─▶ two rows that stand in ─▶ module ─▶ outputs ─▶ no rows

The module computes, so that this rank comes to every collective, and nothing it computes counts.
Rows stand in because many modules do not take none: `reshape(rows, -1)` is ambiguous then. They are
two, for what takes a variance over them. Of lists of samples (`samples`) a whole sample stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import SpreadError
from ...transfer.tree import Path, map_leaves
from .samples import Arguments, count_samples, put_samples, take_samples

_STAND_IN = 2


@contextmanager
def statistics_at_rest(module: nn.Module) -> Iterator[None]:
    """Let layers of batch normalization learn nothing meanwhile.

    But for those that take their statistics from all ranks: they wait for each other.
    """
    resting = [
        layer
        for layer in module.modules()
        if isinstance(layer, _BatchNorm)
        and not isinstance(layer, nn.SyncBatchNorm)
        and layer.training
    ]
    for layer in resting:
        layer.training = False
    try:
        yield
    finally:
        for layer in resting:
            layer.training = True


def compute_without_rows(
    module: nn.Module,
    compute: Callable[[Arguments], Any],
    given: Arguments,
    like: Arguments | None,
    dim: int,
) -> Any:
    """Return what ``compute(given)`` would return of no rows: outputs that lead back to the module.

    Args:
        module: what is computed.
        compute: calls it.
        given: its arguments, without rows along `dim`.
        like: the same of one row that it took before, for their values; None if it took none.
        dim: which dimension has the rows.

    Raises:
        SpreadError: they list samples, and there is none yet that could stand in.
    """
    if any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules()):
        return compute(given)  # rows that stand in would count in the statistics
    if count_samples(given) is not None:
        if like is None:
            raise SpreadError(
                "this rank has no samples in its first step, and of empty lists it cannot be told "
                "what the module is to compute beside the other ranks. Let the first global batch "
                "have a sample for every rank"
            )
        given = put_samples(given, like, _STAND_IN)
    else:
        given = _stand_in(given, like, dim)
    with statistics_at_rest(module):
        output = compute(given)
    if count_samples(((output,), {})) is not None:
        return output[:0]
    return _narrow(output, 0, dim)


def one_row(arguments: Arguments, dim: int) -> Any:
    """Return a copy of a call's arguments with the first row only."""

    def copy(tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    samples = count_samples(arguments)
    if samples is None:
        return _narrow(arguments, 1, dim, copy)
    return map_leaves(
        take_samples(arguments, samples, 1),
        lambda leaf, _: copy(leaf) if isinstance(leaf, Tensor) else leaf,
    )


def without_rows(arguments: Arguments, dim: int) -> Any:
    """Return a call's arguments with no rows."""
    samples = count_samples(arguments)
    if samples is None:
        return _narrow(arguments, 0, dim)
    return take_samples(arguments, samples, 0)


def _narrow(
    tree: Any, rows: int, dim: int, copy: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Any:
    def narrow(leaf: Any, path: Path) -> Any:
        if isinstance(leaf, Tensor) and -leaf.dim() <= dim < leaf.dim():
            return copy(leaf.narrow(dim, 0, min(rows, leaf.size(dim))))
        return leaf

    return map_leaves(tree, narrow)


def _stand_in(given: Any, like: Any, dim: int) -> Any:
    known: dict[Path, Any] = {}

    def note(leaf: Any, path: Path) -> Any:
        known[path] = leaf
        return leaf

    map_leaves(like, note)

    def fill(leaf: Any, path: Path) -> Any:
        if not isinstance(leaf, Tensor) or not -leaf.dim() <= dim < leaf.dim() or leaf.size(dim):
            return leaf
        shape = list(leaf.shape)
        shape[dim] = 1
        row = known.get(path)
        if not isinstance(row, Tensor) or list(row.shape) != shape or row.dtype != leaf.dtype:
            # One is an index, a length and a number; no mask hides anything.
            row = leaf.new_full(shape, leaf.dtype is not torch.bool)
        return torch.cat([row.to(leaf.device)] * _STAND_IN, dim)

    return map_leaves(given, fill)
