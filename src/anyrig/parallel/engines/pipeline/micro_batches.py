"""How many micro-batches a batch is cut into, and cutting the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ....errors import BatchError, SpreadError
from ...accumulation import count_arguments
from ...parts.samples import name_argument
from ...parts.scatter import divide

# With m micro-batches on n devices, a device computes in m of m + n - 1 turns: in 80 % or more if m
# is 4 n.
MICRO_BATCHES_PER_STAGE = 4

_REMEDIES = (
    "Use micro_batches=1, put layers with running statistics in eval(), or replace them with "
    "torch.nn.GroupNorm, which needs no other samples"
)


@dataclass(frozen=True)
class MicroBatch:
    """The arguments of a call for some of its samples."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Any
    samples: int


@dataclass(frozen=True)
class MicroBatches:
    """How many micro-batches a batch is cut into, and why."""

    number: int
    reason: str
    is_given: bool

    def number_for(self, module: nn.Module) -> int:
        """Return the number for a module in its present mode.

        Raises:
            SpreadError: the caller asked for several, but a layer needs the whole batch.
        """
        layer = None if self.number == 1 else find_whole_batch_layer(module)
        if layer is None:
            return self.number
        if self.is_given:
            raise SpreadError(
                f"micro_batches={self.number} was given, but {layer} takes "
                f"statistics of its samples, which must be the whole batch. {_REMEDIES}"
            )
        return 1

    def refuse_loss(self, place: str, pipelines: int) -> str:
        """Return why a batch is not cut, if the module computes a loss over all of its samples.

        Args:
            place: the line of code that computes such a loss; empty if the module has none.
            pipelines: the number of pipelines, each of which computes a part of the batch.

        Raises:
            SpreadError: the caller asked for several micro-batches or pipelines.
        """
        if not place or self.number == pipelines == 1:
            return ""
        if self.is_given or pipelines > 1:
            several = f"replicas={pipelines}" if pipelines > 1 else f"micro_batches={self.number}"
            raise SpreadError(
                f"{several} was given, but the module computes a mean over targets that are not "
                "arguments of its call, or that have weights, or a sum over targets, so the parts "
                f"of a batch do not show what the mean divides by: {place}. Use micro_batches=1 "
                "and one pipeline, or let the module return what the loss needs, and give spread "
                "the loss: loss=criterion"
            )
        return f"1, as the module computes a mean or sum over targets for the whole batch: {place}"

    def refuse_writes(self, written: str) -> str:
        """Return why a batch is one micro-batch, if a forward pass writes a buffer.

        Raises:
            SpreadError: the caller asked for several.
        """
        if self.is_given:
            raise SpreadError(
                f"micro_batches={self.number} was given, but the forward pass writes {written}, "
                "once for each micro-batch instead of once for each batch. Use micro_batches=1, or "
                "put this layer in eval(), if it writes nothing in that mode"
            )
        return f"1, as the forward pass writes {written}, once for each micro-batch"

    def describe_for(self, module: nn.Module) -> str:
        """Return the number for a module, and why, for the user."""
        layer = find_whole_batch_layer(module)
        if layer is None or self.number == 1:
            return f"{self.number}, {self.reason}"
        return f"1, as {layer} takes statistics of the whole batch. {_REMEDIES}"


def choose_micro_batches(micro_batches: int | str, devices: int) -> MicroBatches:
    """Return the number of micro-batches for `devices` devices.

    Args:
        micro_batches: see `Pipeline`.
        devices: the number of devices.
    """
    if isinstance(micro_batches, str):
        number = MICRO_BATCHES_PER_STAGE * devices
        reason = (
            f"{MICRO_BATCHES_PER_STAGE} for each of {devices} devices: each computes in "
            f"{number} of {number + devices - 1} turns; never more than there are samples"
        )
        return MicroBatches(number, reason, False)
    return MicroBatches(micro_batches, "as given; never more than there are samples", True)


def cut_call(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    target: Any,
    split: Callable[[int], Sequence[int]],
    dim: int,
    given: int | None = None,
) -> tuple[list[MicroBatch], bool]:
    """Cut the arguments of a call into micro-batches; ``split(total)`` returns their samples.

    Tensors stay on their devices; without a graph, the parts are views. `given` is what the caller
    gave as ``samples=``.

    Returns:
        The micro-batches, and whether the arguments have samples.
    """
    call = args, dict(kwargs), target
    values, samples = divide(call, None, split, dim, _name, is_call=True, expected=given)
    counts = samples or (1,)
    parts = [
        MicroBatch(args_part, kwargs_part, target_part, count)
        for (args_part, kwargs_part, target_part), count in zip(values, counts, strict=True)
    ]
    return parts, samples is not None


def cut_evenly(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    target: Any,
    number: int,
    dim: int,
    given: int | None = None,
    alone: bool = True,
) -> tuple[list[MicroBatch], bool]:
    """Cut as `cut_call` does, into at most `number` equal parts; one part is the batch as it is.

    If this is the only pipeline (`alone`), nothing depends on the samples of a batch in one part,
    so it may have arguments without samples.
    """
    if number > 1:
        return cut_call(args, kwargs, target, lambda total: split_evenly(total, number), dim, given)
    try:
        samples = (
            given if given is not None else count_arguments(args, {**kwargs, "target": target}, dim)
        )
    except BatchError:
        if not alone:
            raise
        samples = None
    count = 1 if samples is None else samples
    return [MicroBatch(args, kwargs, target, count)], samples is not None


def split_evenly(total: int, number: int) -> tuple[int, ...]:
    """Return the sizes of at most `number` parts, which differ by one at most; none is empty.

    ::

        10 samples in 4 micro-batches: 3 3 2 2
    """
    parts = max(1, min(number, total))
    size, larger = divmod(total, parts)
    return (size + 1,) * larger + (size,) * (parts - larger)


def find_whole_batch_layer(module: nn.Module) -> str | None:
    """Return a description of a layer that needs the whole batch in its present mode, or None."""
    for layer in module.modules():
        name = type(layer).__name__
        if isinstance(layer, _BatchNorm) and layer.running_mean is None:
            return f"{name} without running statistics"
        is_learning = isinstance(layer, _NormBase) and layer.training
        if is_learning and (isinstance(layer, _BatchNorm) or layer.track_running_stats):
            return f"{name} in training mode"
    return None


def _name(path: Sequence[Any]) -> str:
    if path and path[0][1] == 2:
        return "the target"
    return name_argument(tuple(path))
