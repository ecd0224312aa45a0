"""Computing the loss of each part where its output lies, and combining the parts' losses.

Each device sends a sum and a count to the lead, which divides the total sum by the total count, so
no device holds the outputs of the others.
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
from ...transfer.beside import copy_beside, copy_in_order
from ...transfer.location import device_of
from ...transfer.move import Mover, resolve_device
from ..marks import tensors_with_gradients
from ..named_arguments import take_target
from ..parts.divided_dimension import read_shapes
from ..parts.gather import gather
from ..parts.samples import count_samples
from ..parts.scatter import scatter_samples
from .checked_means import refuse_unseen
from .criterions import Known, name_of, recognise
from .even_means import rate_of_targets, require_even
from .means_of_parts import noting_means
from .mistakes import require_criterion
from .own_loss import HalvesCheck
from .target_means import sum_of_mean

Criterion = Callable[[Any, Any], Any]

_HALF = (torch.float16, torch.bfloat16)
_LENGTHS = (
    ". Where the module pads sequences to the longest of its part, give it the length of the "
    "target: pad_packed_sequence(..., total_length=length)"
)


@dataclass(frozen=True)
class LossPart:
    """The loss of one part of a batch."""

    value: Tensor  # the part's sum; or a loss for each sample, if the criterion does not reduce
    count: Tensor | float | None  # what the part adds to the batch's divisor; None: no division
    reduced: bool  # whether `value` is a sum
    dtype: torch.dtype  # of the batch's loss
    shape: torch.Size | None = None  # of the output, if only the samples may differ between parts
    skips: bool = False  # whether what does not count has no gradient, whatever the divisor is
    # What means over targets divide by that are one term of the loss among others.
    targets: tuple[Tensor, ...] = ()


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
            # What the module has computed is not the loss's.
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
        wide = returned.float() if returned.dtype in _HALF else returned
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


def combine_losses(parts: Sequence[LossPart], device: Place, dim: int = 0) -> Tensor:
    """Return the batch's loss on `device`; losses without reduction are joined along `dim`."""
    _require_one_length(parts, dim)
    rates = [rate for part in parts if (rate := rate_of_targets(part)) is not None]
    if len(parts) > 1:
        require_even([float(rate) for rate in rates])
    to = resolve_device(device)
    if len({(part.reduced, part.count is None) for part in parts}) != 1:
        raise BatchError(
            "the loss was reduced in different ways on different devices; return the same kind of "
            "value for every part of a batch"
        )
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


class ParallelLoss(nn.Module):
    """A criterion over outputs that stay on their devices.

    ::

        criterion = ParallelLoss(nn.CrossEntropyLoss())
        criterion(model.scattered(x), target).backward()

    Value and gradients are those of the criterion on the joined outputs, for PyTorch's criterions
    and for callables that return a mean over samples, a loss for each sample, or ``(sum, count)``.
    The criterion's tensors are copied to each device at each call; its parameters get gradients.

    Args:
        criterion: called as ``criterion(output, target)`` for each part.
        device: where the loss is returned; None means the first output's device.
        dim: the dimension that has the samples.

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
        """Return the loss of the whole batch, from each device's output and the whole target.

        Raises:
            BatchError: there are no outputs, or the target has a different number of samples.
        """
        if not outputs:
            raise BatchError("there are no outputs to compute a loss from; pass one per device")
        counts = [count_samples(output, self.dim) or 0 for output in outputs]
        devices = [device_of(output) for output in outputs]
        targets = scatter_samples(target, devices, counts, self.dim)
        parts = [
            loss_part(criterion_on(self.criterion, device), output, part, count)
            for device, output, part, count in zip(devices, outputs, targets, counts, strict=True)
            if count or not any(counts)
        ]
        return combine_losses(parts, devices[0] if self.device is None else self.device, self.dim)


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
            "lengths. Return (sum, count) from the loss" + _LENGTHS
        )


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
            f"({type(error).__name__}: {error}). Give the output the form of the "
            f"target{_about_lengths(output, target)}"
        ) from error


def _about_lengths(output: Tensor, target: Tensor) -> str:
    """Return advice for outputs that are shorter than their target: padded to a part's longest."""
    shorter = output.dim() == target.dim() or output.dim() == target.dim() + 1
    if not shorter or output.shape[:1] != target.shape[:1]:
        return ""
    # The classes of a classifier, in dimension 1, have no counterpart in the target.
    sizes = output.shape if output.dim() == target.dim() else (len(output), *output.shape[2:])
    return _LENGTHS if any(map(int.__lt__, sizes, target.shape)) else ""


def _add(values: Sequence[Tensor], device: torch.device) -> Tensor:
    moved = [copy_in_order(value, device) for value in values]
    if moved[0].dtype in _HALF:
        moved = [value.float() for value in moved]
    return torch.stack(moved).sum() if len(moved) > 1 else moved[0]


def reduction_of(criterion: Criterion, known: Known | None) -> object:
    """Return the criterion's ``reduction``, given what `recognise` returned; None if unknown."""
    return known.settings["reduction"] if known else getattr(criterion, "reduction", None)
