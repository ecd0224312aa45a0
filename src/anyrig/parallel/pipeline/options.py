"""The options of `spread` for pipelines, and the checks that they fit the loss and precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch

from ...errors import SpreadError
from ..losses.criterions import recognise
from ..losses.loss import Criterion, reduction_of
from .micro_batches import choose_micro_batches
from .schedules.named import SCHEDULE_NAMES
from .split.arguments import Call

CHECKPOINT = ("never", "except_last", "always")
_GPIPE = 'use schedule="gpipe", whose backward passes begin with loss.backward()'


@dataclass(frozen=True)
class PipelineOptions:
    """What a caller may choose for a pipeline; see `anyrig.spread`."""

    micro_batches: int | str = "auto"
    schedule: str = "auto"
    checkpoint: str = "never"
    split_points: Sequence[str] | None = None
    example: Call | None = None

    def __post_init__(self) -> None:
        names = ("auto", *sorted(set(SCHEDULE_NAMES) - {"forward"}))
        for option, value, known in (
            ("schedule", self.schedule, names),
            ("checkpoint", self.checkpoint, CHECKPOINT),
        ):
            if value not in known:
                valid = ", ".join(map(repr, known))
                raise SpreadError(f"{option}={value!r} is unknown; use one of {valid}")
        _check_split_points(self.split_points)
        _check_example(self.example)

    def recomputes(self, micro_batch: int, micro_batches: int) -> bool:
        """Return whether a micro-batch computes its activations again in the backward pass."""
        if self.checkpoint == "except_last":
            return micro_batch < micro_batches - 1
        return self.checkpoint == "always"


def check_options(
    options: PipelineOptions,
    how: str,
    module: torch.nn.Module,
    loss: Criterion | None,
    precision: torch.dtype | None,
) -> None:
    """Raise SpreadError for options that a pipeline refuses, though one device ignores them."""
    choose_schedule(options, how, module, loss, precision)
    choose_micro_batches(options.micro_batches, 1, how)
    known = [name for name, _ in module.named_modules() if name]
    for name in options.split_points or ():
        if name not in known:
            near = get_close_matches(name, known, 3, 0.5) or known[:3]
            raise SpreadError(
                f"split_points: {type(module).__name__} has no submodule {name!r}; "
                f"the nearest names are {', '.join(map(repr, near))}"
            )


def choose_schedule(
    options: PipelineOptions,
    how: str,
    module: torch.nn.Module,
    loss: Criterion | None,
    precision: torch.dtype | None,
    on_cpu_ranks: bool = False,
) -> tuple[str, str]:
    """Return the name of the schedule of training steps, and why.

    Args:
        options: what was asked for.
        how: ``"pipeline"`` or ``"split"``.
        module: the module.
        loss: the loss, if the module was spread with one.
        precision: the dtype of autocast.
        on_cpu_ranks: whether the devices are CPUs, each of a rank of its own.

    Raises:
        SpreadError: the schedule that was asked for needs something that is missing.
    """
    if how == "split":
        if options.schedule not in ("auto", "gpipe"):
            raise SpreadError(
                f'schedule={options.schedule!r} was given with how="split", which has one '
                'micro-batch; use how="pipeline"'
            )
        return "gpipe", "one micro-batch passes forward, and back in loss.backward()"
    obstacle = _find_obstacle(module, loss, precision)
    if options.schedule == "auto":
        if obstacle is None and on_cpu_ranks:
            return "zero-bubble-few", (
                "ranks hardly wait for each other, although the speed of CPUs varies; 1f1b holds "
                "the activations of fewer micro-batches"
            )
        if obstacle is None:
            return "1f1b", "as fast as gpipe, and holds the activations of fewer micro-batches"
        return "gpipe", f"backward passes wait for loss.backward(), as {obstacle}"
    if options.schedule != "gpipe" and obstacle is not None:
        raise SpreadError(
            f"schedule={options.schedule!r} computes backward passes before loss.backward(), which "
            f"is impossible, as {obstacle}; {_GPIPE}"
        )
    return options.schedule, "as given"


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


def _check_split_points(given: object) -> None:
    if given is None:
        return
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise SpreadError(
            f"split_points={given!r} is not a list of submodules' names; write "
            'split_points=["layers.4", "layers.8"], or ["3"] for part 3 of a Sequential'
        )


def _check_example(given: object) -> None:
    if given is None:
        return
    if isinstance(given, tuple) and len(given) == 2:
        args, kwargs = given
        if isinstance(args, list | tuple) and isinstance(kwargs, Mapping):
            return
    raise SpreadError(
        f"example= was given {_describe(given)}, but takes the arguments of a call: a tuple of the "
        "positional arguments and a dict of the others, as in example=((x,), {}) or "
        '((x,), {"mask": None})'
    )


def _describe(given: object) -> str:
    if isinstance(given, torch.Tensor):
        return f"a tensor of shape {tuple(given.shape)}"
    if isinstance(given, list | tuple):
        return f"a {type(given).__name__} of {', '.join(map(_describe, given)) or 'nothing'}"
    return f"{type(given).__name__}"
