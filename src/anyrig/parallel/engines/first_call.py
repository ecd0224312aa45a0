"""The checks of a first call, on one device, before all devices compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..layout import Layout
from ..losses.checked_means import CheckedCalls
from ..losses.criterions import recognise
from ..losses.loss import Criterion, compute_loss_part
from ..losses.own_loss import HalvesCheck
from ..losses.same_by_halves import NOTHING, Differences, compare_part
from ..parts.call import with_copies, without_trace


def check_first_call(
    call: Callable[[Callable[..., Any], tuple[Any, Any]], Any],
    checked: CheckedCalls,
    layout: Layout,
    module: nn.Module,
    loss: Criterion | None,
    part: tuple[Any, Any],
    samples: int,
    device: torch.device,
) -> Differences:
    """Check what a module on `device` computes for a part of a batch, in a first call.

    Return what does not follow from the halves of the part; raise BatchError for a loss that does
    not follow from them. `call` calls a function on `device` with a part.
    """
    if loss is not None and recognise(loss) is None and checked.note_loss(samples):
        check, learns = HalvesCheck(layout.dim), torch.is_grad_enabled()

        def compute(*inputs: Any, **kwargs: Any) -> None:
            with torch.set_grad_enabled(learns):
                compute_loss_part(module, loss, device, samples, check, *inputs, **kwargs)

        with without_trace([module, loss], [device]):
            call(compute, with_copies(part))
    if layout.plan.local_statistics or not checked.note_halves(part[1], samples):
        return NOTHING
    return compare_part(module, loss, part, samples, layout.dim, device, call)
