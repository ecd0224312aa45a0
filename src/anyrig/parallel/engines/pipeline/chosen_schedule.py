"""The schedule of a pipeline: as asked for, or the fastest that the loss and precision allow."""

from __future__ import annotations

from difflib import get_close_matches

import torch

from ....errors import SpreadError
from ...losses.criterions import recognise
from ...losses.loss import Criterion, reduction_of
from ...plans import Pipeline

_GPIPE = 'use schedule="gpipe", whose backward passes begin with loss.backward()'


def check_names(
    plan: Pipeline,
    module: torch.nn.Module,
    loss: Criterion | None,
    precision: torch.dtype | None,
) -> None:
    """Raise SpreadError for options that a pipeline refuses, though one device ignores them."""
    choose_schedule(plan, module, loss, precision)
    known = [name for name, _ in module.named_modules() if name]
    for name in plan.split_points or ():
        if name not in known:
            near = get_close_matches(name, known, 3, 0.5) or known[:3]
            raise SpreadError(
                f"split_points: {type(module).__name__} has no submodule {name!r}; "
                f"the nearest names are {', '.join(map(repr, near))}"
            )


def choose_schedule(
    plan: Pipeline,
    module: torch.nn.Module,
    loss: Criterion | None,
    precision: torch.dtype | None,
    on_cpu_ranks: bool = False,
) -> tuple[str, str]:
    """Return the name of the schedule of training steps, and why.

    Args:
        plan: what was asked for.
        module: the module.
        loss: the loss, if the module was spread with one.
        precision: the dtype of autocast.
        on_cpu_ranks: whether the devices are CPUs, each of a rank of its own.

    Raises:
        SpreadError: the schedule that was asked for needs something that is missing.
    """
    if plan.schedule == "auto" and plan.micro_batches == 1:
        return "gpipe", "one micro-batch passes forward, and back in loss.backward()"
    obstacle = _find_obstacle(module, loss, precision)
    if plan.schedule == "auto":
        if obstacle is None and on_cpu_ranks:
            return "zero-bubble-few", (
                "ranks hardly wait for each other, although the speed of CPUs varies; 1f1b holds "
                "the activations of fewer micro-batches"
            )
        if obstacle is None:
            return "1f1b", "as fast as gpipe, and holds the activations of fewer micro-batches"
        return "gpipe", f"backward passes wait for loss.backward(), as {obstacle}"
    if plan.schedule != "gpipe" and obstacle is not None:
        raise SpreadError(
            f"schedule={plan.schedule!r} computes backward passes before loss.backward(), which "
            f"is impossible, as {obstacle}; {_GPIPE}"
        )
    return plan.schedule, "as given"


def _find_obstacle(
    module: torch.nn.Module, loss: Criterion | None, precision: torch.dtype | None
) -> str | None:
    """Return why backward passes cannot begin before ``loss.backward()``, or None."""
    if loss is None:
        return "the model was spread without loss="
    if reduction_of(loss, recognise(loss)) == "none":
        return "the loss is not reduced"
    if isinstance(loss, torch.nn.Module) and any(p.requires_grad for p in loss.parameters()):
        return "the loss has parameters that learn"
    if precision is torch.float16 or any(p.dtype is torch.float16 for p in module.parameters()):
        return "gradients in float16 need the scaled loss"
    return None
