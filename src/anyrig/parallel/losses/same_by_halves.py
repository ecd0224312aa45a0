"""The check that what a module computes for a part of a batch follows from the part's halves.

::

    a part      y = module(x), 8 samples
    its halves  y[:4] and y[4:] where the module computes each sample for itself; a mean over
                samples is the mean of the halves' means

In a first call, before the step, the module computes one part and its halves in evaluation mode, so
that dropout and batch statistics do not hide what it does, and without hooks. A softmax over
samples, attention in a tensor whose first dimension is the sequence, a mean over a mask, or a sum
does not follow. Of batch normalization, `batch_statistics` warns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import PackedSequence

from ...errors import BatchError, MoveError
from ...transfer.tree import Path, format_path, list_leaves
from ..compiling import uncompiled
from ..named_arguments import take_target
from ..parts.call import with_copies, without_trace
from ..parts.scatter import divide
from .criterions import name_of, recognise
from .halves import Value, compute_half, follows, has_values, without_collectives
from .loss import Criterion, criterion_on, reduction_of
from .means_of_parts import counting_targets

# Computes a part as it is (1) or in halves (2); returns the samples and the outputs.
Compute = Callable[[int], tuple[Sequence[int], Sequence[Any]]]

_ACCEPT = (
    "To accept the numbers of each device's samples, as DDP does, use "
    "plan=Replicas(local_statistics=True)"
)

_Leaves = Mapping[Path, Tensor]


@dataclass(frozen=True)
class Differences:
    """What does not follow from halves: a reason for each path in the output."""

    reasons: Mapping[Path, str]

    def refuse(self, output: Any) -> None:
        """Raise BatchError if `output`, of the same call, has such a tensor with a gradient.

        Without gradients, raise it for any.
        """
        if not torch.is_grad_enabled():
            self.refuse_any()
        if not self.reasons:
            return
        for path, leaf in _leaves_of(output).items():
            if leaf.requires_grad and path in self.reasons:
                raise BatchError(self.reasons[path])

    def refuse_any(self) -> None:
        """Raise BatchError if there is a reason."""
        for reason in self.reasons.values():
            raise BatchError(reason)


NOTHING = Differences({})


def find_differences(
    module: nn.Module,
    compute: Compute,
    devices: Sequence[torch.device],
    accept: str,
    loss: Any = None,
    numbers: bool = True,
) -> Differences:
    """Return what a module computes for a part and what does not follow from the part's halves.

    Compare nothing that is random or has a state, that communicates, or that fails.

    Args:
        module: the module.
        compute: computes the part.
        devices: where the module lies.
        accept: how to say that such numbers are meant.
        loss: what returns the numbers, and may take them as sums over samples.
        numbers: whether to compare tensors without dimensions, too.
    """
    if any(isinstance(each, _BatchNorm) and each.running_mean is None for each in module.modules()):
        return NOTHING
    if not all(each.is_floating_point() or each.is_complex() for each in module.parameters()):
        return NOTHING  # scales of quantised layers may be those of a whole batch
    precision, is_sum = _precision(module, devices[0]), reduction_of(loss, None) == "sum"

    def leaves_of(number: int) -> tuple[Sequence[int], list[_Leaves]]:
        samples, outputs = compute(number)
        leaves = map(_leaves_of, outputs)
        return samples, [{p: t for p, t in each.items() if numbers or t.dim()} for each in leaves]

    try:
        with _evaluating(module, loss, devices):
            _, (whole,) = leaves_of(1)
            (first, second), halves = leaves_of(2)
            reasons: dict[Path, str] = {}
            for path, value in whole.items():
                parts = [each[path] for each in halves]
                if value.dim():
                    reason = _compare(module, path, value, parts, precision)
                else:
                    values = [Value.of(each, precision) for each in (value, *parts)]
                    reason = _compare_numbers(module, path, values, (first, second), is_sum)
                if reason is not None:
                    reasons[path] = f"{reason}. {accept}"
            if reasons:
                _, (again,) = leaves_of(1)
                for path in [*reasons]:
                    value = whole[path]  # random, with a state, or assumed
                    if not torch.equal(again[path], value) or not has_values(value):
                        del reasons[path]
    except Exception:  # what cannot be done is not compared, nor within torch.compile
        return NOTHING
    return Differences(reasons)


def compare_part(
    module: nn.Module,
    loss: Criterion | None,
    part: tuple[Any, Any],
    samples: int,
    dim: int,
    device: torch.device,
    run: Callable[[Callable[..., Any], Any], Any] = lambda call, part: call(*part[0], **part[1]),
    method: Callable[..., Any] | None = None,
) -> Differences:
    """Compare what a module computes on one device with its halves; see `find_differences`.

    With a loss, raise BatchError if a tensor differs, or a number that the loss returns as the
    module has returned it.

    Args:
        module: the module.
        loss: what gets the output and ``target=``; None without a target.
        part: the arguments and keyword arguments of a part of the batch, with the target.
        samples: the number of samples of the part.
        dim: the dimension that has the samples.
        device: where the module lies.
        run: calls a function with a part.
        method: what is called in place of the module, without a loss.
    """

    def compute(function: Callable[..., Any]) -> Compute:
        return _in_halves(partial(run, function), part, samples, dim, device)

    devices = [device]
    if loss is None:
        learns = torch.is_grad_enabled()
        return find_differences(module, compute(method or module), devices, _ACCEPT, numbers=learns)
    alone = compute(_without_target(module))
    find_differences(module, alone, devices, _ACCEPT, numbers=False).refuse_any()
    if recognise(loss) is None:
        number = _own_number_of(module, criterion_on(loss, device))
        find_differences(module, compute(number), devices, _ACCEPT, loss).refuse_any()
    return NOTHING


def _without_target(module: nn.Module) -> Callable[..., Any]:
    """Return what calls a module as a step with a loss does."""

    def call(*inputs: Any, **kwargs: Any) -> Any:
        take_target(module, inputs, kwargs)
        return module(*inputs, **kwargs)

    return call


def _own_number_of(module: nn.Module, criterion: Criterion) -> Callable[..., Any]:
    """Return what computes the number of a module's output that a loss returns as it is.

    It raises BatchError if the loss computes something of its own.
    """

    def compute(*inputs: Any, **kwargs: Any) -> Any:
        target = take_target(module, inputs, kwargs)
        output = module(*inputs, **kwargs)
        returned = criterion(output, target)
        if not any(returned is leaf for leaf, _ in list_leaves(output)):
            raise BatchError(f"{name_of(criterion)} computes a loss of its own")
        return returned

    return compute


def _in_halves(
    call: Callable[[tuple[Any, Any]], Any],
    part: tuple[Any, Any],
    samples: int,
    dim: int,
    device: torch.device,
) -> Compute:
    """Return what computes the arguments of a part with a call on one device."""
    totals: list[Tensor] = []
    counts = samples // 2, samples - samples // 2

    def compute(number: int) -> tuple[Sequence[int], Sequence[Any]]:
        given = with_copies(part)
        # Before the first call, as what cannot be divided is not called.
        halves = divide(
            given, (device, device), lambda _: counts, dim, is_call=True, expected=samples
        )
        if halves.samples != counts:
            raise BatchError(f"the part has {halves.samples} samples, not {counts}")
        if number == 1:
            totals.clear()
            with counting_targets(totals):
                return [samples], [call(given)]
        return counts, [
            compute_half(partial(call, half), totals, count / samples)
            for half, count in zip(halves.values, counts, strict=True)
        ]

    return compute


def _leaves_of(output: Any) -> _Leaves:
    """Return the floating-point tensors of an output, by their paths."""
    leaves: list[tuple[Any, Path]] = []
    with suppress(MoveError):  # of what contains itself, which is refused where outputs are joined
        leaves = list_leaves(output, (PackedSequence,))  # packed by time, not by samples
    return {
        path: leaf
        for leaf, path in leaves
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not leaf.is_nested
    }


def _precision(module: nn.Module, device: torch.device) -> float:
    """Return what rounding to the module's types may change in a mean, relative to its terms."""
    dtypes = {each.dtype for each in module.parameters() if each.is_floating_point()}
    if torch.is_autocast_enabled(device.type):
        dtypes.add(torch.get_autocast_dtype(device.type))
    return 4 * max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)


@contextmanager
def _evaluating(module: nn.Module, loss: Any, devices: Sequence[torch.device]) -> Iterator[None]:
    with without_trace([module, loss], devices), without_collectives(), uncompiled():
        for each in module.modules():
            each.training = False
            # Hooks are for the step.
            each.__dict__.update(_forward_hooks=OrderedDict(), _forward_pre_hooks=OrderedDict())
        yield


def _compare(
    module: nn.Module, path: Path, whole: Tensor, parts: Sequence[Tensor], precision: float
) -> str | None:
    """Return why a tensor is not that of the halves, one after the other; None if it is."""
    first, second = parts
    places = [
        dim
        for dim in range(whole.dim())
        if {whole.dim()} == {first.dim(), second.dim()}
        and whole.size(dim) == first.size(dim) + second.size(dim)
        and all(
            whole.size(i) == first.size(i) == second.size(i) for i in range(whole.dim()) if i != dim
        )
    ]
    precision = max(precision, torch.finfo(whole.dtype).eps ** 0.5)
    size = max(float(whole.norm()), float(first.norm()), float(second.norm()))
    errors = [float((torch.cat([first, second], dim) - whole).norm()) for dim in places]
    if not errors or not size < float("inf") or min(errors) <= precision * size:
        return None
    return (
        f"{_describe(module, path, 'a tensor')} of shape {tuple(whole.shape)}, which is not that "
        f"of its halves, computed one after the other: it differs by {min(errors) / size:.2g} of "
        "its norm. So the module relates samples to each other, and each device has only its part. "
        "If the samples are in another dimension, as for nn.LSTM and nn.Transformer without "
        "batch_first=True, say so: spread(module, dim=1); else compute what relates samples of "
        "what the model returns, outside of the module"
    )


def _compare_numbers(
    module: nn.Module,
    path: Path,
    values: Sequence[Value | None],
    counts: tuple[int, int],
    is_sum: bool,
) -> str | None:
    """Return why a number is not what is expected of the parts' numbers; None if it is."""
    whole, *parts = values
    if whole is None or not whole.is_finite or follows(whole, parts, counts, is_sum):
        return None
    first, second = parts
    found = (
        f"{_describe(module, path, 'a number')}, which is {whole} for {sum(counts)} samples, but "
        f"{first} and {second} for their halves, {counts[0]} and {counts[1]} samples"
    )
    if is_sum:
        return (
            f"{found}: the loss takes it as a sum over samples, which it is not. Leave out the "
            "loss's attribute reduction for a mean over samples; else let the module return the "
            "outputs, and the loss (sum, count)"
        )
    if follows(whole, parts, counts, True):
        return (
            f"{found}: it is a sum over samples, and numbers of the parts of a batch are weighted "
            "by their samples, as means are. Let the module return the mean; or return the "
            "outputs, and give spread a loss= whose attribute reduction is 'sum'"
        )
    return (
        f"{found}: it is not a mean over samples, so the value for a batch does not follow from "
        "the values for its parts on several devices. Let the module return the outputs, and give "
        "spread a loss= that returns (sum, count) for a mean over anything but samples, such as "
        "what a mask selects; compute what compares samples with each other from the outputs"
    )


def _describe(module: nn.Module, path: Path, what: str) -> str:
    return f"{type(module).__name__} returns {what}{f' {format_path(path)}' if path else ''}"
