"""The loss of a global batch, on every rank, from the losses on the ranks of the last stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ....losses.even_means import rate_of_targets, require_even
from ....losses.loss_part import LossPart
from ....losses.whole import require_one_kind, sums_of, whole_of
from .links import Links

_CLOSE = 1e-6  # relative; what is left of the difference of two equal squares
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class LossKind:
    """What ranks without the last stage must know about a loss.

    Attributes:
        reduced: whether the loss is one number, and not one for each sample.
        dtype: the dtype of the loss.
        mixes_means: whether means over targets are one term of the loss among others.
    """

    reduced: bool
    dtype: torch.dtype
    mixes_means: bool


@dataclass(frozen=True)
class WholeLoss:
    """The loss of a global batch.

    Attributes:
        value: the same on every rank; meaningless if the loss is not reduced.
        divisor: what the sum of the losses was divided by.
        left: what divides the gradients: the divisor over the one that `begin_adding_losses` was
            given.
        kind: the kind of the loss.
        targets: what means over targets divide by that are one term of the loss among others; if
            there are several, a number for all.
    """

    value: Tensor
    divisor: Tensor
    left: Tensor
    kind: LossKind
    targets: Sequence[Tensor]


def begin_adding_losses(
    parts: Sequence[LossPart],
    device: torch.device,
    known: dict[str, LossKind],
    links: Links,
    divided_by: float = 1.0,
) -> Callable[[], WholeLoss]:
    """Give this rank's losses to the other ranks; every rank of the group must call this.

    Args:
        parts: the losses of the micro-batches on a rank with the last stage; else empty.
        device: the device of this rank.
        known: the kind of loss of earlier calls like this one, so that later calls need not read
            it from a GPU. This call adds its own.
        links: the links with the other ranks.
        divided_by: what the gradients are already divided by; needs to be known on the ranks of the
            last stages only.

    Returns:
        A function that waits for the other ranks' losses, and returns that of the global batch.

    Raises:
        BatchError: the loss was reduced for some micro-batches only; or raised by the returned
            function on every rank, see `require_even`.
    """
    # A rehearsal without data reads 1 for every total, which means a reduced loss in float32.
    totals = torch.zeros(11, dtype=torch.float64, device=device)
    rates = [rate for part in parts if (rate := rate_of_targets(part)) is not None]
    if parts:
        first = parts[0]
        require_one_kind(parts)
        totals[:3] = sums_of(parts, device)
        skips = float(all(part.skips for part in parts))
        facts = [float(first.reduced), _DTYPES.index(first.dtype), 1.0, divided_by, skips]
        totals[3:9] = torch.tensor([*facts, 1.0 + len(rates)], dtype=torch.float64)
    if rates:
        stacked = torch.stack(rates)
        totals[9:] = torch.stack([stacked.sum(), (stacked**2).sum()])
    wait = links.begin_sum(totals)

    def finish() -> WholeLoss:
        wait()
        ranks = totals[5].clamp(min=1.0)
        if "loss" not in known or device.type == "cpu":
            dtype = _DTYPES[round(float(totals[4] / ranks))]
            is_reduced, mixes_means = bool(totals[3] == totals[5]), bool(totals[8] > totals[5])
            known["loss"] = LossKind(is_reduced, dtype, mixes_means)
        number = totals[8] - totals[5]
        if known["loss"].mixes_means:
            _require_even(float(number), *totals[9:].tolist())
        value, divisor = whole_of(totals)
        # See `divisor_of_gradients`.
        is_empty = (divisor == 0) & (totals[7] == totals[5])
        left = torch.where(is_empty, 1.0, divisor)
        left = left / torch.where(totals[5] > 0, totals[6] / ranks, 1.0)
        kind = known["loss"]
        targets = [totals[9] / number * divisor] if kind.mixes_means else []
        return WholeLoss(value.to(kind.dtype), divisor, left, kind, targets)

    return finish


def _require_even(number: float, total: float, squares: float) -> None:
    """Raise BatchError unless `number` rates with this sum and sum of squares are equal."""
    mean = total / number
    deviation = math.sqrt(max(squares / number - mean**2, 0.0))
    if deviation > _CLOSE * mean:
        require_even([mean - deviation, mean + deviation])
