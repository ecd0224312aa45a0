"""The means over targets that replicas compute: the devices add up the targets that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...transfer.beside import copy_in_order
from ..losses.checked_means import FirstCall, refuse_unseen
from ..losses.means_of_parts import computing_part
from .meeting import Meeting


def count_targets_together(
    functions: Sequence[Callable[..., Any]],
    meeting: Meeting,
    samples: Sequence[int],
    totals: list[Tensor],
    has_loss: bool | None,
) -> list[Callable[..., Any]]:
    """Return functions for the meeting's devices that take means over all devices' targets.

    Args:
        functions: one for each device; each computes its part of a batch.
        meeting: the replicas of this step.
        samples: the number of samples of each part.
        totals: gets what each mean divides by.
        has_loss: see `FirstCall`; None if the call is not checked.
    """
    total = sum(samples)
    return [
        partial(
            _compute,
            function,
            meeting,
            device,
            count / total if total else 0.0,
            totals if device == meeting.devices[0] else [],
            None if has_loss is None else (count, has_loss),
        )
        for function, device, count in zip(functions, meeting.devices, samples, strict=True)
    ]


def _compute(
    function: Callable[..., Any],
    meeting: Meeting,
    device: torch.device,
    share: float,
    totals: list[Tensor],
    checked: tuple[int, bool] | None,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    def add_up(count: Tensor) -> tuple[Tensor, float]:
        totals.append(meeting.combine(device, count, _add, "the number of targets"))
        return totals[-1], share

    first = None if checked is None else FirstCall(checked[0], (args, kwargs), checked[1])
    with computing_part(add_up, first):
        result = function(*args, **kwargs)
    if first is not None and not first.has_loss:
        refuse_unseen(result, first.seen)
    return result


def _add(devices: Sequence[torch.device], counts: Sequence[Tensor]) -> Sequence[Tensor]:
    lead = devices[0]
    total = torch.stack([copy_in_order(count, lead) for count in counts]).sum()
    return [copy_in_order(total, device) for device in devices]
