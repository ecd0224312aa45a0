"""The means over targets that replicas compute: the devices add up the targets that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....transfer.beside import copy_in_order
from ...losses.checked_means import FirstCall
from ...losses.means_of_parts import computing_part
from .meeting import Meeting

Check = Callable[[int, Any], FirstCall]


def count_targets_together(
    functions: Sequence[Callable[..., Any]],
    meeting: Meeting,
    samples: Sequence[int],
    totals: list[Tensor],
    check: Check | None,
) -> list[Callable[..., Any]]:
    """Return functions for the meeting's devices that take means over all devices' targets.

    Args:
        functions: one for each device; each computes its part of a batch.
        meeting: the replicas of this step.
        samples: the number of samples of each part.
        totals: gets what each mean divides by.
        check: makes the check of a part, given its samples and arguments; None for no check.
    """
    total = sum(samples) or 1

    def together(function: Callable[..., Any], device: torch.device, count: int) -> Any:
        def add_up(own: Tensor) -> tuple[Tensor, float]:
            of_all = meeting.combine(device, own, _add, "the number of targets")
            if device == meeting.devices[0]:
                totals.append(of_all)
            return of_all, count / total

        def compute(*args: Any, **kwargs: Any) -> Any:
            first = None if check is None else check(count, (args, kwargs))
            with computing_part(add_up, first):
                result = function(*args, **kwargs)
            if first is not None:
                first.check_output(result)
            return result

        return compute

    return [*map(together, functions, meeting.devices, samples)]


def _add(devices: Sequence[torch.device], counts: Sequence[Tensor]) -> Sequence[Tensor]:
    lead = devices[0]
    total = torch.stack([copy_in_order(count, lead) for count in counts]).sum()
    return [copy_in_order(total, device) for device in devices]
