"""The loss of a whole batch, from the losses of its parts: the sum of sums over the sum of counts.

::

    in one process           losses with a graph ──▶ combine_losses ──▶ one loss with a graph
    over ranks, in shards    losses ──▶ sums_of ──▶ the ranks add the sums ──▶ whole_of
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...devices.place import Place
from ...errors import BatchError
from ...transfer.beside import copy_in_order
from ...transfer.move import resolve_device
from ..parts.divided_dimension import read_shapes
from ..parts.gather import gather
from .even_means import rate_of_targets, require_even
from .loss import HALF_DTYPES, LENGTHS_REMEDY
from .loss_part import LossPart


def combine_losses(parts: Sequence[LossPart], device: Place, dim: int = 0) -> Tensor:
    """Return the batch's loss on `device`; losses without reduction are joined along `dim`."""
    _require_one_length(parts, dim)
    rates = [rate for part in parts if (rate := rate_of_targets(part)) is not None]
    if len(parts) > 1:
        require_even([float(rate) for rate in rates])
    to = resolve_device(device)
    require_one_kind(parts)
    if not parts[0].reduced:
        whole: Tensor = gather([part.value for part in parts], to, dim)
        return whole
    total = _add([part.value for part in parts], to)
    count = combine_counts(parts, to)
    if count is None:
        return total.to(parts[0].dtype)
    whole_count = count.to(total.dtype) if isinstance(count, Tensor) else count
    return (total / whole_count).to(parts[0].dtype)  # 0 / 0 is NaN, as in PyTorch


def combine_counts(parts: Sequence[LossPart], device: torch.device) -> Tensor | float | None:
    """Return what the sum of the parts' losses is divided by; None if it is not divided."""
    counts = [part.count for part in parts if part.count is not None]
    known: float = sum(count for count in counts if not isinstance(count, Tensor))
    counted = [count for count in counts if isinstance(count, Tensor)]
    if counted:
        return _add(counted, device) + known
    return known if counts else None


def divisor_of_gradients(
    parts: Sequence[LossPart], count: Tensor | float | None
) -> Tensor | float | None:
    """Return what divides the gradients of the sum of losses; None if nothing does.

    If nothing counts, PyTorch's criterions have a loss of 0 / 0 and gradients of zero. Gradients
    that were computed before the division are zero already, and 0 / 0 would make them NaN.
    """
    if not all(part.skips for part in parts):
        return count
    if isinstance(count, Tensor):
        return torch.where(count == 0, 1, count)
    return count or (None if count is None else 1.0)


def sums_of(parts: Sequence[LossPart], device: torch.device) -> Tensor:
    """Return three numbers to add up: the parts' losses, their counts, and 1 if they have counts.

    The result has no graph. Losses for each sample, which are not reduced, add nothing.
    """
    # float32 is not exact for the counts of a large batch, but these devices have no float64.
    wide = torch.float32 if device.type in ("mps", "xpu") else torch.float64
    sums = torch.zeros(3, dtype=wide, device=device)
    reduced = [part for part in parts if part.reduced]
    if reduced:
        sums[0] = _add([part.value.detach().to(wide) for part in reduced], device)
        count = combine_counts(reduced, device)
        if count is not None:
            sums[1], sums[2] = count, 1
    return sums


def whole_of(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of all whose `sums_of` were added, and what the sum was divided by."""
    total, count, counting = sums[:3].unbind()
    divisor = torch.where(counting > 0, count, 1)
    return total / divisor, divisor


def require_one_kind(parts: Sequence[LossPart]) -> None:
    """Raise BatchError unless all parts have a number or none has, all a count or none."""
    if len({(part.reduced, part.count is None) for part in parts}) != 1:
        raise BatchError(
            "the loss was reduced in different ways for different parts of the batch; return the "
            "same kind of value for every part"
        )


def _require_one_length(parts: Sequence[LossPart], dim: int) -> None:
    """Raise BatchError if outputs differ in a dimension other than that of the samples.

    Such outputs have means over different numbers of elements, or targets that were broadcast.
    """
    shapes = [part.shape for part in parts if part.shape]
    samples = [int(part.count) for part in parts if part.shape and part.count is not None]
    if not shapes or len({len(shape) for shape in shapes}) > 1:
        return
    answer = read_shapes(shapes, samples, dim)
    if answer.differing and not answer.candidates:
        raise BatchError(
            "the loss of each part is a number, and the outputs have shapes "
            f"{', '.join(str(tuple(shape)) for shape in shapes)}: these are means over different "
            "lengths. Return (sum, count) from the loss" + LENGTHS_REMEDY
        )


def _add(values: Sequence[Tensor], device: torch.device) -> Tensor:
    moved = [copy_in_order(value, device) for value in values]
    if moved[0].dtype in HALF_DTYPES:
        moved = [value.float() for value in moved]
    return torch.stack(moved).sum() if len(moved) > 1 else moved[0]
