"""The way of gradients from the replicas to the lead's parameters, as nodes of autograd.

::

    forward    parameters ─▶ Deliver ─▶ Collect (a bucket) ─▶ Take (a bucket, a device) ─▶ replica
                (lead)        token           token                   aliases of copies
    backward   parameters ◀─ Deliver ◀─ Collect ◀──────────── Take ◀─────────────────────── replica
                              waits     adds along the chain   packs    as soon as autograd has the
                              once      on side streams                 gradients of this bucket

Autograd itself knows which replicas take part, when a bucket is complete, and runs parameter hooks
with the whole gradient. Between the nodes run scalars on the CPU, *tokens*; what they stand for
hangs on them as an attribute, which PyTorch keeps for as long as a tensor lives. For a CPU scalar,
`Collect` runs in the thread that called ``backward()``, which has nothing else to do, at once and
beside the threads of the devices; a token on a device would queue behind what that device computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...transfer.streams import using
from .buckets import Bucket, copy_each, in_cuts
from .side_streams import copy_across, side_streams

Gradients = tuple[torch.Tensor | None, ...]
# For each bucket that learns, a token for each active device. Not kept in `Step`, which the nodes
# that made them refer to: nothing could free such a circle through autograd.
Tokens = dict[Bucket, tuple[torch.Tensor, ...]]


@dataclass(eq=False)
class Packed:
    """The gradients of one bucket on one device.

    Attributes:
        flat: laid out as the bucket, zero where a gradient is missing. It may be a gradient that
            others have too, so nothing is written into it.
        present: for each slot, whether there is a gradient.
        ready: recorded when `flat` is.
    """

    flat: torch.Tensor
    present: list[bool]
    ready: torch.Event


@dataclass(eq=False)
class Step:
    """What the nodes of one forward share.

    Attributes:
        lead: the device of the parameters.
        zero: a number on it, for tokens.
        others: all other devices, in the order of the chain.
        on_backward: called when a device has queued another part of its backward, gradients on
            their way included, with the stream it is queued on.
    """

    lead: torch.device
    zero: torch.Tensor
    others: tuple[torch.device, ...]
    buckets: Sequence[Bucket]
    on_backward: Callable[[torch.Stream], None] | None = None
    # For each bucket that learns: the positions of the slots that do.
    _learning: dict[Bucket, list[int]] = field(default_factory=dict)

    def mark(self, stream: torch.Stream) -> None:
        """Tell whoever measures that the work of this stream's device has come so far."""
        if self.on_backward is not None:
            self.on_backward(stream)

    def begin(self, active: Sequence[int]) -> Tokens:
        """Make the nodes of the lead; those of the replicas come when they read."""
        for bucket in self.buckets:
            learning = [i for i, slot in enumerate(bucket.slots) if slot.tensor.requires_grad]
            if learning:
                self._learning[bucket] = learning
        if not self._learning or torch.is_inference_mode_enabled():
            return {}
        parameters = [
            bucket.slots[position].tensor
            for bucket, learning in self._learning.items()
            for position in learning
        ]
        # Parameters require gradients under no_grad too; a module may enable them for a part.
        with torch.enable_grad():
            tokens = _apply(_Deliver, self, self._learning, *parameters)
            return {
                bucket: _apply(_Collect, self, bucket, len(active), token)
                for bucket, token in zip(self._learning, tokens, strict=True)
            }

    def take(self, bucket: Bucket, device: int, token: torch.Tensor | None) -> list[torch.Tensor]:
        """Return the bucket's tensors on a device, for this step.

        They share storage and version with the copies there. Must be called in the thread, and on
        the stream, that reads them: autograd sends gradients of what is read last back first, by
        the order in which the thread made its nodes.

        Args:
            bucket: which tensors.
            device: position among `others`.
            token: the device's for this bucket; None if nothing in it learns.
        """
        stream = torch.accelerator.current_stream(self.others[device])
        stream.wait_event(bucket.ready[device])
        bucket.flat(device).record_stream(stream)
        copies = bucket.copies(device)
        if token is None:
            return [copy.detach() for copy in copies]
        learning = self._learning[bucket]
        # Read first within no_grad, as in a checkpoint, and again in its recomputation.
        with torch.enable_grad():
            aliases = _apply(_Take, self, bucket, device, learning, token)
        learned = dict(zip(learning, aliases, strict=True))
        return [
            learned[position] if position in learned else copy.detach()
            for position, copy in enumerate(copies)
        ]


class _Take(torch.autograd.Function):
    """A token becomes a bucket's tensors on a device; their gradients become one."""

    @staticmethod
    def forward(
        ctx: Any, step: Step, bucket: Bucket, device: int, learning: list[int], token: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.step, ctx.bucket, ctx.device, ctx.learning = step, bucket, device, learning
        ctx.set_materialize_grads(False)
        copies = bucket.copies(device)
        return tuple(copies[position].detach() for position in learning)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        step, bucket = ctx.step, ctx.bucket
        step.mark(torch.accelerator.current_stream(step.others[ctx.device]))
        found: list[torch.Tensor | None] = [None] * len(bucket.slots)
        for position, gradient in zip(ctx.learning, gradients, strict=True):
            found[position] = gradient
        if not any(gradient is not None for gradient in found):
            return None, None, None, None, None
        plain = not torch.is_grad_enabled() and all(
            gradient is None or gradient.layout == torch.strided for gradient in found
        )
        load = _pack(bucket, found, step.others[ctx.device]) if plain else found
        return None, None, None, None, _token((ctx.device, load))


class _Collect(torch.autograd.Function):
    """A bucket's token becomes one for each active device; back, their gradients are added."""

    @staticmethod
    def forward(
        ctx: Any, step: Step, bucket: Bucket, count: int, token: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.step, ctx.bucket = step, bucket
        ctx.set_materialize_grads(False)
        return tuple(torch.zeros((), device="cpu") for _ in range(count))

    @staticmethod
    def backward(ctx: Any, *tokens: torch.Tensor | None) -> Any:
        step, bucket = ctx.step, ctx.bucket
        loads = [_load(token) for token in tokens if token is not None]
        whole = _collect(step, bucket, loads)
        return None, None, None, None if whole is None else _token(whole, step.zero)


class _Deliver(torch.autograd.Function):
    """The lead's parameters become a token for each bucket; back, they get their gradients.

    The tokens lie on the lead, so that this runs in its thread, behind all that it computes: only
    there must its stream wait for the sums.
    """

    @staticmethod
    def forward(
        ctx: Any, step: Step, learning: dict[Bucket, list[int]], *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.step, ctx.learning = step, learning
        ctx.set_materialize_grads(False)
        return tuple(torch.empty((), device=step.lead) for _ in learning)

    @staticmethod
    def backward(ctx: Any, *tokens: torch.Tensor | None) -> Any:
        step = ctx.step
        stream = torch.accelerator.current_stream(step.lead)
        step.mark(stream)
        gradients: list[torch.Tensor | None] = []
        for (bucket, learning), token in zip(ctx.learning.items(), tokens, strict=True):
            bucket.suspect = True
            whole = None if token is None else _load(token)
            if isinstance(whole, Packed):
                whole = _unpack(bucket, whole, stream)
            gradients += [None if whole is None else whole[position] for position in learning]
        return None, None, *gradients


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _token(load: object, zero: torch.Tensor | None = None) -> torch.Tensor:
    # A number that is defined, for anomaly detection looks at it.
    number = torch.zeros((), device="cpu") if zero is None else zero.detach()
    token: Any = number
    token.load = load
    return number


def _load(token: Any) -> Any:
    return token.load


def _pack(bucket: Bucket, gradients: Sequence[torch.Tensor | None], device: torch.device) -> Packed:
    """Bring a device's gradients into one piece, on the stream that computed them."""
    present = [gradient is not None for gradient in gradients]
    flat = bucket.as_flat(gradients[0]) if len(gradients) == 1 else None
    if flat is None:
        make = torch.empty if all(present) else torch.zeros
        flat = make(bucket.length, dtype=bucket.dtype, device=device)
        parts = bucket.parts(flat)
        targets = [part for part, here in zip(parts, present, strict=True) if here]
        copy_each(targets, [gradient for gradient in gradients if gradient is not None])
    return Packed(flat, present, torch.accelerator.current_stream(device).record_event())


def _unpack(bucket: Bucket, packed: Packed, stream: torch.Stream) -> list[torch.Tensor | None]:
    """Return the gradients, for use on `stream`."""
    stream.wait_event(packed.ready)
    packed.flat.record_stream(stream)
    parts = bucket.parts(packed.flat)
    return [part if here else None for part, here in zip(parts, packed.present, strict=True)]


def _collect(
    step: Step, bucket: Bucket, loads: Sequence[tuple[int, Any]]
) -> Packed | list[torch.Tensor | None] | None:
    """Return the sum of a bucket's gradients on the lead."""
    by_device: dict[int, Packed] = {}
    loose: list[Sequence[torch.Tensor | None]] = []
    for device, load in loads:
        if isinstance(load, Packed):
            by_device[device] = load
        else:
            loose.append(load)
    whole = None
    if by_device:
        whole = _add_along_the_chain(step, [by_device[device] for device in sorted(by_device)])
    if not loose:
        return whole
    if whole is not None:
        loose.append(_unpack(bucket, whole, torch.accelerator.current_stream(step.lead)))
    return [_sum(column, step.lead) for column in zip(*loose, strict=True)]


def _either(one: Sequence[bool], other: Sequence[bool]) -> list[bool]:
    return [a or b for a, b in zip(one, other, strict=True)]


def _add_along_the_chain(step: Step, summands: Sequence[Packed]) -> Packed:
    """Add from the far end of the chain to the lead, on side streams.

    Addition runs on the stream on which a device receives, while it sends on another.
    """
    *nearer, far = summands
    hops, present = len(summands), far.present
    for one in nearer:
        present = _either(present, one.present)
    stages = [
        (_room_for(far.flat, step.lead if here is None else here.flat.device), here)
        for here in (*reversed(nearer), None)
    ]
    for number, part in enumerate(in_cuts(far.flat, hops)):
        ready = far.ready
        for whole, here in stages:
            target = in_cuts(whole, hops)[number]
            _pass_on(step, part, ready, target)
            arriving = side_streams(whole.device).arriving
            if here is not None:
                arriving.wait_event(here.ready)
                here.flat.record_stream(arriving)
                with using(arriving):
                    target.add_(in_cuts(here.flat, hops)[number])
            part, ready = target, arriving.record_event()
    return Packed(stages[-1][0], present, ready)


def _room_for(flat: torch.Tensor, device: torch.device) -> torch.Tensor:
    with using(side_streams(device).arriving):
        return torch.empty_like(flat, device=device)


def _pass_on(step: Step, part: torch.Tensor, ready: torch.Event, target: torch.Tensor) -> None:
    leaving = side_streams(part.device).leaving
    leaving.wait_event(ready)
    part.record_stream(leaving)
    copy_across([(target, part)], arriving=side_streams(target.device).arriving, leaving=leaving)
    step.mark(leaving)


def _sum(gradients: Sequence[torch.Tensor | None], lead: torch.device) -> torch.Tensor | None:
    """Add what cannot be packed: sparse gradients, and those that are differentiated again."""
    here = [gradient.to(lead) for gradient in gradients if gradient is not None]
    if not here:
        return None
    total = here[0]
    for gradient in here[1:]:
        total = total + gradient
    return total
