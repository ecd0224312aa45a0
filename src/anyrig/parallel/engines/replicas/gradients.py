"""The autograd nodes that bring gradients from the replicas to the lead's parameters.

::

    forward    parameters ─▶ Deliver ─▶ Collect (a bucket) ─▶ Take (a bucket, a device) ─▶ replica
                (lead)        token           token                   aliases of copies
    backward   parameters ◀─ Deliver ◀─ Collect ◀──────────── Take ◀─────────────────────── replica
                              waits     adds along the chain   packs    as soon as autograd has the
                              once      on side streams                 gradients of this bucket

Autograd determines which replicas take part and when a bucket is complete, and runs parameter hooks
with the whole gradient. *Tokens* pass between the nodes: scalars that have gradients as attributes.
They are on the CPU, so that `Collect` runs in the otherwise idle thread that called ``backward()``
instead of waiting behind a device's computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from threading import Lock
from typing import Any

import torch

from ....transfer.streams import using
from .broadcast import copy_across, side_streams
from .buckets import Bucket, in_cuts

# For each bucket that learns, a token for each active device. `Step` must not hold tokens: their
# nodes refer to it, and Python cannot free a reference cycle through autograd.
Tokens = dict[Bucket, tuple[torch.Tensor, ...]]
Mark = Callable[[torch.Stream], None]


@dataclass(eq=False)
class Packed:
    """The gradients of one bucket on one device."""

    flat: torch.Tensor  # with the bucket's layout, zeros where missing; read only: may be shared
    present: list[bool]  # for each slot, whether there is a gradient
    ready: torch.Event  # recorded after the work that fills `flat`


@dataclass(eq=False)
class Step:
    """The state that the nodes of one forward share."""

    lead: torch.device
    zero: torch.Tensor  # a scalar on the lead, for tokens
    others: tuple[torch.device, ...]  # in the order of the chain
    buckets: Sequence[Bucket]
    mark: Mark  # records a stream's progress for the step timer
    began: torch.Event | None = field(default=None, init=False)  # on the lead's stream
    _waiting: Lock = field(default_factory=Lock, init=False)

    def begin(self, active: Sequence[int]) -> Tokens:
        """Make the lead's nodes; each replica makes its own when it reads a bucket."""
        learning = [bucket for bucket in self.buckets if bucket.learns]
        if not learning or torch.is_inference_mode_enabled():
            return {}
        parameters = [slot.tensor for bucket in learning for slot in bucket.slots]
        self.began = torch.accelerator.current_stream(self.lead).record_event()
        # Under no_grad too: a module may enable gradients for a part of its forward.
        with torch.enable_grad():
            tokens = _apply(_Deliver, self, learning, *parameters)
            return {
                bucket: _apply(_Collect, self, bucket, len(active), token)
                for bucket, token in zip(learning, tokens, strict=True)
            }

    def await_begin(self) -> None:
        """Wait until the lead has begun to compute this step, and so has finished the last one.

        Gradients cross streams, so the allocator reuses their memory only when all of these have
        finished with it. A host that is many steps ahead would allocate new memory for each.
        """
        if self.began is not None:
            with self._waiting:  # one thread waits awake, the others asleep
                self.began.synchronize()

    def take(self, bucket: Bucket, device: int, token: torch.Tensor | None) -> list[torch.Tensor]:
        """Return the bucket's tensors on a device for this step; the token is None if none learns.

        They share storage and version with the copies. Call this in the thread and on the stream
        that read them: of the nodes that a thread made, autograd runs the last one first.
        """
        stream = torch.accelerator.current_stream(self.others[device])
        stream.wait_event(bucket.ready[device])
        bucket.flat(device).record_stream(stream)
        if token is None:
            return [copy.detach() for copy in bucket.copies[device]]
        # A checkpoint reads first under no_grad, and again in its recomputation.
        with torch.enable_grad():
            aliases = _apply(_Take, self, bucket, device, token)
        return [
            alias if slot.tensor.requires_grad else alias.detach()
            for alias, slot in zip(aliases, bucket.slots, strict=True)
        ]


class _Take(torch.autograd.Function):
    """Forward: a token to a bucket's tensors on a device. Backward: pack their gradients."""

    @staticmethod
    def forward(
        ctx: Any, step: Step, bucket: Bucket, device: int, token: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.step, ctx.bucket, ctx.device = step, bucket, device
        ctx.set_materialize_grads(False)
        return tuple(copy.detach() for copy in bucket.copies[device])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        step, bucket, device = ctx.step, ctx.bucket, ctx.step.others[ctx.device]
        step.await_begin()
        stream = torch.accelerator.current_stream(device)
        step.mark(stream)
        present = [gradient for gradient in gradients if gradient is not None]
        if not present:
            return None, None, None, None
        load: Packed | Sequence[torch.Tensor | None] = gradients
        if not torch.is_grad_enabled() and all(one.layout == torch.strided for one in present):
            flat = bucket.pack(gradients, device)
            load = Packed(flat, [one is not None for one in gradients], stream.record_event())
        return None, None, None, _token((ctx.device, load))


class _Collect(torch.autograd.Function):
    """Forward: a bucket's token to one for each active device. Backward: add their gradients."""

    @staticmethod
    def forward(
        ctx: Any, step: Step, bucket: Bucket, count: int, token: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.step, ctx.bucket = step, bucket
        ctx.set_materialize_grads(False)
        return tuple(torch.zeros((), device="cpu") for _ in range(count))

    @staticmethod
    def backward(ctx: Any, *tokens: Any) -> Any:
        step, bucket = ctx.step, ctx.bucket
        step.await_begin()
        loads = [token.load for token in tokens if token is not None]
        packed = {device: load for device, load in loads if isinstance(load, Packed)}
        loose = [load for _, load in loads if not isinstance(load, Packed)]
        whole: Any = None
        if packed:
            whole = _add_along_the_chain(step, [packed[device] for device in sorted(packed)])
        if loose:
            if whole is not None:
                stream = torch.accelerator.current_stream(step.lead)
                loose.append(_unpack(bucket, whole, stream))
            whole = [_sum(column, step.lead) for column in zip(*loose, strict=True)]
        return None, None, None, None if whole is None else _token(whole, step.zero)


class _Deliver(torch.autograd.Function):
    """Forward: the lead's parameters to a token for each bucket. Backward: unpack the sums.

    The tokens are on the lead, so that backward runs after all that the lead computes, and its
    stream waits for the sums only then.
    """

    @staticmethod
    def forward(
        ctx: Any, step: Step, learning: list[Bucket], *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.step, ctx.learning = step, learning
        ctx.set_materialize_grads(False)
        return tuple(torch.empty((), device=step.lead) for _ in learning)

    @staticmethod
    def backward(ctx: Any, *tokens: Any) -> Any:
        step = ctx.step
        stream = torch.accelerator.current_stream(step.lead)
        step.mark(stream)
        gradients: list[torch.Tensor | None] = []
        for bucket, token in zip(ctx.learning, tokens, strict=True):
            bucket.suspect = True
            whole = [None] * len(bucket.slots) if token is None else token.load
            gradients += _unpack(bucket, whole, stream) if isinstance(whole, Packed) else whole
        return None, None, *gradients


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _token(load: object, zero: torch.Tensor | None = None) -> torch.Tensor:
    # Initialized, since anomaly detection reads the value.
    token = torch.zeros((), device="cpu") if zero is None else zero.detach()
    token.load = load  # type: ignore[attr-defined]
    return token


def _unpack(bucket: Bucket, packed: Packed, stream: torch.Stream) -> list[torch.Tensor | None]:
    """Return the gradients for use on `stream`, which waits for them."""
    stream.wait_event(packed.ready)
    packed.flat.record_stream(stream)
    parts = zip(bucket.parts(packed.flat), packed.present, strict=True)
    return [part if here else None for part, here in parts]


def _add_along_the_chain(step: Step, summands: Sequence[Packed]) -> Packed:
    """Add from the far end of the chain to the lead, on the streams on which devices receive."""
    *nearer, far = summands
    hops = len(summands)
    # The partial sum on each device, and the device's own gradients; none on the lead.
    stages: list[tuple[torch.Tensor, Packed | None]] = []
    for here in (*reversed(nearer), None):
        device = step.lead if here is None else here.flat.device
        with using(side_streams(device).arriving):
            stages.append((torch.empty_like(far.flat, device=device), here))
    for number, part in enumerate(in_cuts(far.flat, hops)):
        ready = far.ready
        for whole, here in stages:
            target = in_cuts(whole, hops)[number]
            leaving = side_streams(part.device).leaving
            arriving = side_streams(whole.device).arriving
            leaving.wait_event(ready)
            part.record_stream(leaving)
            copy_across([(target, part)], part.device, whole.device)
            step.mark(leaving)
            if here is not None:
                arriving.wait_event(here.ready)
                here.flat.record_stream(arriving)
                with using(arriving):
                    target.add_(in_cuts(here.flat, hops)[number])
            part, ready = target, arriving.record_event()
    present = [any(of_slot) for of_slot in zip(*(one.present for one in summands), strict=True)]
    return Packed(stages[-1][0], present, ready)


def _sum(gradients: Sequence[torch.Tensor | None], lead: torch.device) -> torch.Tensor | None:
    """Add gradients that cannot be packed: sparse ones, and those that have a graph."""
    here = [gradient.to(lead) for gradient in gradients if gradient is not None]
    return reduce(torch.add, here) if here else None
