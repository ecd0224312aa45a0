"""Computing the loss of each part of a batch where its output lies; `whole` combines them.

Each device sends a sum and a count to the lead, which divides the total sum by the total count, so
no device holds the outputs of the others.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BatchError
from ...transfer.beside import copy_beside
from ...transfer.move import Mover
from ..marks import tensors_with_gradients
from ..named_arguments import take_target
from .checked_means import refuse_unseen
from .criterions import Known, name_of, recognise
from .loss_part import LossPart
from .means_of_parts import noting_means
from .own_loss import HalvesCheck
from .target_means import sum_of_mean

Criterion = Callable[[Any, Any], Any]

HALF_DTYPES = (torch.float16, torch.bfloat16)
LENGTHS_REMEDY = (
    ". Where the module pads sequences to the longest of its part, give it the length of the "
    "target: pad_packed_sequence(..., total_length=length)"
)


class PartLoss:
    """Computes the losses of a batch's parts, one after another, with one criterion.

    PyTorch's criterions (see `recognise`) are computed as a sum and a count. For any other
    callable, the returned value decides:

    * ``(sum, count)``: the loss is the sum of the sums over the sum of the counts;
    * a tensor without dimensions: a term of a sum if the callable has ``reduction = "sum"``, else a
      mean over samples;
    * a tensor with dimensions: a loss for each sample, joined as outputs are.

    Args:
        criterion: called as ``criterion(output, target)`` for each part; not changed meanwhile.
        check: of the first part, if its criterion is not one of PyTorch's.
    """

    def __init__(self, criterion: Criterion, check: HalvesCheck | None = None) -> None:
        self._criterion, self._known = criterion, recognise(criterion)
        self._check = check
        self._is_checked = False

    def __call__(self, output: Any, target: Any, samples: int) -> LossPart:
        """Return the loss of one part, which has `samples` samples.

        Raise BatchError if the criterion returns something else than a `PartLoss` takes, or if
        output and target do not fit in shape.
        """
        criterion = self._criterion
        known = self._known if isinstance(output, Tensor) else None
        reduction = reduction_of(criterion, known)
        if known is not None and known.by_elements and output.shape != target.shape:
            raise BatchError(
                f"{name_of(criterion)} takes elements of the output and the target in pairs, but a "
                f"part of the batch has shapes {tuple(output.shape)} and {tuple(target.shape)}, "
                "which would pair samples within this part only. Give both the same "
                f"shape{_about_lengths(output, target)}"
            )
        if known is not None and reduction in ("mean", "batchmean"):
            # The sum of many half-precision losses may overflow where their mean does not.
            widens = (
                output.dtype is torch.float16
                # Autocast takes losses in float32.
                and not torch.is_autocast_enabled(output.device.type)
                and not (
                    isinstance(criterion, nn.Module) and any(True for _ in criterion.buffers())
                )
            )
            given = [
                t.float() if widens and t.dtype is torch.float16 else t for t in (output, target)
            ]
            value = _call(known.summed, criterion, *given)
            dtype = output.dtype if widens else value.dtype
            count = known.count(output, target, known.settings)
            return LossPart(value, count, True, dtype, skips=True)
        with noting_means() as noted:
            returned = _call(criterion, criterion, output, target)
        means = noted.means
        if noted.seen is not None and self._known is None and not self._is_checked:
            self._is_checked = True
            # Do not look into the module's graph, which is not the loss's.
            given = [each.grad_fn for each in tensors_with_gradients(output)]
            refuse_unseen(returned, [*noted.seen, *given])
        if self._check is not None:
            self._check.check(criterion, output, target, samples, reduction == "sum")
            self._check = None
        if len(means) == 1 and returned is means[0][0]:
            mean, count = means[0]
            return LossPart(sum_of_mean(mean, count), count, True, mean.dtype, skips=True)
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Tensor):
            value, count = returned
            return LossPart(value.reshape(()), count, True, value.dtype)
        if not isinstance(returned, Tensor):
            raise BatchError(
                f"the loss {name_of(criterion)} returned {type(returned).__name__}; return a "
                "tensor, or a tuple (sum, count) whose sum is a tensor"
            )
        if returned.dim() > 0 or reduction == "sum":
            return LossPart(returned, None, returned.dim() == 0, returned.dtype)
        # A half-precision mean times the number of samples may overflow.
        wide = returned.float() if returned.dtype in HALF_DTYPES else returned
        shape = output.shape if isinstance(output, Tensor) and not output.is_nested else None
        targets = tuple(number for _, number in means)
        return LossPart(wide * samples, samples, True, returned.dtype, shape, targets=targets)


def loss_part(
    criterion: Criterion,
    output: Any,
    target: Any,
    samples: int,
    check: HalvesCheck | None = None,
) -> LossPart:
    """Return the loss of one part of a batch, which has `samples` samples; see `PartLoss`."""
    return PartLoss(criterion, check)(output, target, samples)


def compute_loss_part(
    module: nn.Module,
    criterion: Criterion,
    device: torch.device,
    samples: int,
    check: HalvesCheck | None,
    /,
    *inputs: Any,
    **kwargs: Any,
) -> LossPart:
    """Call a module on `device` with a part of a batch, and return the loss of its output.

    The keyword arguments have the target; see `take_target`.
    """
    target = take_target(module, inputs, kwargs)
    output = module(*inputs, **kwargs)
    return loss_part(criterion_on(criterion, device), output, target, samples, check)


def explain_loss(criterion: Criterion) -> str:
    """Return in words how the batch's loss is computed from the parts' losses."""
    known, name = recognise(criterion), name_of(criterion)
    reduction = reduction_of(criterion, known)
    if reduction in ("sum", "none"):
        return f"{name}: the parts' losses are {'added' if reduction == 'sum' else 'joined'}"
    if known is not None:
        return f"{name}: summed over all parts, divided by the total count"
    return (
        f"{name} is not one of PyTorch's criterions: if it returns (sum, count), the sum over all "
        "parts is divided by the total count; else each part's loss is weighted by its samples, so "
        "it must be a mean over samples"
    )


def loss_for_target(module: nn.Module, loss: Criterion | None, kwargs: Any) -> Criterion | None:
    """Return the loss that gets ``target=``; None if the forward gets it or none was given."""
    if "target" not in kwargs:
        return None
    if loss is not None:
        return loss
    names = inspect.signature(module.forward).parameters
    if "target" in names or any(p.kind is p.VAR_KEYWORD for p in names.values()):
        return None
    raise TypeError(
        f"{type(module).__name__}.forward() takes no argument 'target', and the model was spread "
        "without a loss; give one: anyrig.spread(module, loss=criterion)"
    )


def criterion_on(criterion: Criterion, device: torch.device) -> Criterion:
    """Return `criterion` with its tensors on `device`, or `criterion` itself if they are there.

    Gradients reach the criterion's own parameters. Several threads may call this concurrently.
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
    # deepcopy refuses tensors that have a graph, but takes their copies from the memo.
    memo: dict[int, Any] = {id(tensor): copy_beside(tensor, device) for tensor in tensors}
    return copy.deepcopy(criterion, memo)


def _call(function: Criterion, criterion: Criterion, output: Any, target: Any) -> Any:
    """Return ``function(output, target)``; explain an error that different lengths cause."""
    try:
        return function(output, target)
    except (ValueError, RuntimeError) as error:
        are_tensors = isinstance(output, Tensor) and isinstance(target, Tensor)
        if (
            isinstance(error, torch.OutOfMemoryError)
            or not are_tensors
            or set(target.shape) <= set(output.shape)
        ):
            raise
        raise BatchError(
            f"the loss {name_of(criterion)} failed on a part of the batch with an output of shape "
            f"{tuple(output.shape)} and a target of shape {tuple(target.shape)} "
            f"({type(error).__name__}: {error}). Give the output the shape of the "
            f"target{_about_lengths(output, target)}"
        ) from error


def _about_lengths(output: Tensor, target: Tensor) -> str:
    """Return advice for outputs that are shorter than their target: padded to a part's longest."""
    shorter = output.dim() == target.dim() or output.dim() == target.dim() + 1
    if not shorter or output.shape[:1] != target.shape[:1]:
        return ""
    # The classes of a classifier, in dimension 1, have no counterpart in the target.
    sizes = output.shape if output.dim() == target.dim() else (len(output), *output.shape[2:])
    return LENGTHS_REMEDY if any(map(int.__lt__, sizes, target.shape)) else ""


def reduction_of(criterion: Criterion, known: Known | None) -> object:
    """Return the criterion's ``reduction``, given what `recognise` returned; None if unknown."""
    return known.settings["reduction"] if known else getattr(criterion, "reduction", None)
