"""The loss computed beside the outputs, part by part, and combined to that of the whole batch.

::

    cuda:0   output ─ criterion ─▶ sum, count ──┐
    cuda:1   output ─ criterion ─▶ sum, count ──┼▶ lead:  sum of sums / sum of counts
    cuda:2   output ─ criterion ─▶ sum, count ──┘

Only two numbers a device are copied, so the outputs never come together on one device.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...devices.place import Place
from ...errors import BatchError
from ...transfer.beside import copy_beside
from ...transfer.location import device_of
from ...transfer.move import Mover, resolve_device
from ..batch.divided_dimension import read_shapes
from ..batch.gather import gather
from ..batch.rows import count_rows
from ..batch.scatter import scatter_rows
from .criterions import Known, recognise
from .mistakes import require_criterion

Criterion = Callable[[Any, Any], Any]

_COARSE = (torch.float16, torch.bfloat16)  # to count in, or to sum many numbers

_LENGTHS = (
    ". Where the module pads sequences to the longest of its part, give it the length of the "
    "target: pad_packed_sequence(..., total_length=length)"
)


@dataclass(frozen=True)
class LossPart:
    """What one part of a batch adds to the loss.

    Attributes:
        value: a sum over the part; or one loss a row, if nothing is to be reduced.
        count: what the whole batch's sum is divided by; None if it is not divided.
        reduced: False if `value` has one loss a row.
        dtype: that of the whole batch's loss.
        shape: of the output, if those of all parts may differ in the samples only; else None.
    """

    value: Tensor
    count: Tensor | float | None
    reduced: bool
    dtype: torch.dtype
    shape: torch.Size | None = None


def loss_part(criterion: Criterion, output: Any, target: Any, rows: int) -> LossPart:
    """Return the loss of one part of a batch, in such a form that parts can be combined.

    What the criterion's own mean divides by is known of PyTorch's criterions: see `recognise`.
    Any other callable decides by what it returns:

    * ``(sum, count)``: the loss is the sum of the sums over the sum of the counts;
    * a number (a tensor without dimensions): added up if the callable has ``reduction = "sum"``,
      else taken to be a mean over the rows, and weighted by them;
    * a tensor with dimensions: one loss a row, joined like any output.

    Args:
        criterion: called as ``criterion(output, target)``; its tensors lie where the output does.
        output: what the replica returned.
        target: the same rows of the target.
        rows: how many these are.

    Raises:
        BatchError: the callable returned something else, or the output has not the form of the
            target.
    """
    known = recognise(criterion) if isinstance(output, Tensor) else None
    reduction = _reduction_of(criterion, known)
    if known is not None and known.by_elements and output.shape != target.shape:
        raise BatchError(
            f"{_name(criterion)} takes elements of the output and the target in pairs, but a part "
            f"of the batch has shapes {tuple(output.shape)} and {tuple(target.shape)}, which would "
            f"relate samples of one part only to each other. Give both the same shape{_LENGTHS}"
        )
    if known is not None and reduction in ("mean", "batchmean"):
        # Of many half-precision losses the sum would be out of range where their mean is not.
        widens = _overflows(output, criterion)
        given = [
            each.float() if widens and each.dtype is torch.float16 else each
            for each in (output, target)
        ]
        value = _call(known.summed, criterion, *given)
        dtype = output.dtype if widens else value.dtype
        return LossPart(value, known.count(output, target, known.settings), True, dtype)
    returned = _call(criterion, criterion, output, target)
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Tensor):
        value, count = returned
        return LossPart(value.reshape(()), count, True, value.dtype)
    if not isinstance(returned, Tensor):
        raise BatchError(
            f"the loss {_name(criterion)} returned {type(returned).__name__}; return a tensor, or "
            "(sum, count) as two"
        )
    if returned.dim() > 0 or reduction == "sum":
        return LossPart(returned, None, returned.dim() == 0, returned.dtype)
    # Times the samples, a mean in half precision would be out of range.
    wide = returned.float() if returned.dtype in _COARSE else returned
    shape = output.shape if isinstance(output, Tensor) and not output.is_nested else None
    return LossPart(wide * rows, rows, True, returned.dtype, shape)


def combine_losses(parts: Sequence[LossPart], device: Place, dim: int = 0) -> Tensor:
    """Return the loss of the whole batch, on `device`.

    Args:
        parts: at least one, in order.
        device: where the loss is to be.
        dim: along which dimension losses that are not reduced are joined.

    Raises:
        BatchError: the parts were reduced in different ways, or means are over outputs of
            different lengths.
    """
    _require_one_length(parts, dim)
    to = resolve_device(device)
    kinds = {(part.reduced, part.count is None) for part in parts}
    if len(kinds) != 1:
        raise BatchError(
            "the loss was reduced in different ways on different devices; return the same kind of "
            "value for every part of a batch"
        )
    ((reduced, undivided),) = kinds
    if not reduced:
        whole: Tensor = gather([part.value for part in parts], to, dim)
        return whole
    total = _add([part.value for part in parts], to)
    if undivided:
        return total.to(parts[0].dtype)
    counts = [part.count for part in parts if part.count is not None]
    known: float = sum(count for count in counts if not isinstance(count, Tensor))
    counted = [count for count in counts if isinstance(count, Tensor)]
    whole_count = _add(counted, to).to(total.dtype) + known if counted else known
    return (total / whole_count).to(parts[0].dtype)  # 0 / 0 is not a number, as in PyTorch


def explain_loss(criterion: Criterion) -> str:
    """Return in words how the loss of a batch is made of those of its parts."""
    known = recognise(criterion)
    name = _name(criterion)
    reduction = _reduction_of(criterion, known)
    if reduction == "sum":
        return f"{name}: the parts' losses are added"
    if reduction == "none":
        return f"{name}: the parts' losses are joined"
    if known is not None:
        return f"{name}: sums over all parts, divided by what all counted"
    return (
        f"{name} is not one of PyTorch's criterions: each part's loss is weighted by its rows. If "
        "it divides by something else, return (sum, count) from it"
    )


def loss_for_target(module: nn.Module, loss: Criterion | None) -> Criterion | None:
    """Return the loss that ``target=`` in a call of a spread module is for; None if the module's.

    Raises:
        TypeError: it is for neither.
    """
    if loss is not None:
        return loss
    names = inspect.signature(module.forward).parameters
    if "target" in names or any(p.kind is p.VAR_KEYWORD for p in names.values()):
        return None
    raise TypeError(
        f"{type(module).__name__}.forward() takes no argument 'target', and the model was spread "
        "without a loss; give one: anyrig.spread(module, loss=criterion)"
    )


class ParallelLoss(nn.Module):
    """A criterion over outputs that stay on their devices.

    ::

        criterion = ParallelLoss(nn.CrossEntropyLoss())
        criterion(model.scattered(x), target).backward()

    Its value and gradients are those of the criterion on the joined outputs, for the criterions of
    PyTorch and for callables as `loss_part` describes them. A criterion's parameters and buffers
    are copied to each device at each call, and its parameters get their gradients.

    Args:
        criterion: called as ``criterion(output, target)`` for each part.
        device: where the loss is returned; None takes the first output's device.
        dim: the dimension that has the rows.

    Raises:
        SpreadError: `criterion` is a class, or cannot be called.
    """

    def __init__(self, criterion: Criterion, device: Place | None = None, dim: int = 0) -> None:
        super().__init__()
        require_criterion(criterion)
        self.criterion = criterion
        self.device = device
        self.dim = dim

    def forward(self, outputs: Sequence[Any], target: Any) -> Tensor:
        """Return the loss of the whole batch.

        Args:
            outputs: one a device, in order, each on its own.
            target: of the whole batch, anywhere; its rows are divided as the outputs' are.

        Raises:
            BatchError: there are no outputs, or their rows are not those of the target.
        """
        if not outputs:
            raise BatchError("there are no outputs to compute a loss of; give one for each device")
        rows = [count_rows(output, self.dim) or 0 for output in outputs]
        devices = [device_of(output) for output in outputs]
        targets = scatter_rows(target, devices, rows, self.dim)
        parts = [
            loss_part(criterion_on(self.criterion, device), output, part, count)
            for device, output, part, count in zip(devices, outputs, targets, rows, strict=True)
            if count or not any(rows)
        ]
        return combine_losses(parts, devices[0] if self.device is None else self.device, self.dim)


def criterion_on(criterion: Criterion, device: torch.device) -> Criterion:
    """Return `criterion` with its tensors on `device`, itself if they are there.

    Its tensors are a module's parameters and buffers, or what a `functools.partial` was given. The
    copies are part of the graph: gradients arrive at the criterion's own parameters. Several
    threads may call this for one criterion.
    """
    if isinstance(criterion, functools.partial):
        given = (criterion.args, criterion.keywords)
        moved = Mover(device, non_blocking=True).map(given)
        if moved is given:
            return criterion
        copied = functools.partial(criterion.func, *moved[0], **moved[1])
        vars(copied).update(vars(criterion))
        return copied
    if not isinstance(criterion, nn.Module):
        return criterion
    tensors = [*criterion.parameters(), *criterion.buffers()]
    if all(tensor.device == device for tensor in tensors):
        return criterion
    # Whatever is in the memo is taken for the copy, also tensors within a graph, which deepcopy
    # itself would refuse.
    memo: dict[int, Any] = {id(tensor): copy_beside(tensor, device) for tensor in tensors}
    return copy.deepcopy(criterion, memo)


def _require_one_length(parts: Sequence[LossPart], dim: int) -> None:
    """Raise BatchError if outputs differ in more than the samples: against a target of one length
    they may have been broadcast, and their means are over different elements.
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
            "lengths. Return (sum, count) from the loss" + _LENGTHS
        )


def _call(function: Criterion, criterion: Criterion, output: Any, target: Any) -> Any:
    """Return ``function(output, target)``, and say so if it fails because lengths differ."""
    try:
        return function(output, target)
    except (ValueError, RuntimeError) as error:
        have_shapes = isinstance(output, Tensor) and isinstance(target, Tensor)
        if isinstance(error, torch.OutOfMemoryError) or not have_shapes:
            raise
        if set(target.shape) <= set(output.shape):
            raise
        raise BatchError(
            f"the loss {_name(criterion)} failed on a part of the batch with an output of shape "
            f"{tuple(output.shape)} and a target of shape {tuple(target.shape)} "
            f"({type(error).__name__}: {error}). Give the output the form of the target{_LENGTHS}"
        ) from error


def _add(values: Sequence[Tensor], device: torch.device) -> Tensor:
    # To the host a copy waits, because it could be read before it is written.
    moved = [value.to(device, non_blocking=device.type != "cpu") for value in values]
    if moved[0].dtype in _COARSE:
        moved = [value.float() for value in moved]
    return torch.stack(moved).sum() if len(moved) > 1 else moved[0]


def _overflows(output: Tensor, criterion: Criterion) -> bool:
    return (
        output.dtype is torch.float16
        and not torch.is_autocast_enabled(output.device.type)  # which computes losses in float32
        and not (isinstance(criterion, nn.Module) and any(True for _ in criterion.buffers()))
    )


def _reduction_of(criterion: Criterion, known: Known | None) -> object:
    return known.settings["reduction"] if known else getattr(criterion, "reduction", None)


def _name(criterion: Criterion) -> str:
    if isinstance(criterion, functools.partial):
        return _name(criterion.func)
    return getattr(criterion, "__name__", type(criterion).__name__)
