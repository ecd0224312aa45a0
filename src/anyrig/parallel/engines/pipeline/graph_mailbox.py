"""Values on their way between stages, as a part of the caller's graph.

::

    forward    stage ─▶ Leave ─▶ alias ─▶ Enter ─▶ next stage
                │        └─────▶ alias ─▶ Enter ─▶ later stage          copies start at Leave
    backward   stage ◀─ Leave ◀────────── Enter ◀─ next stage           copies start at Enter
                        adds in the order of the stages

Autograd runs the backward passes of all devices concurrently, in one thread each. Of the ready
nodes of a device, the one that was made last runs first. All values that a stage makes from a
micro-batch pass one `Leave`, so the backward passes of a stage run one after the other, the last
micro-batch first, in every run: sums of gradients are the same to the bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ....transfer.tree import list_leaves, map_leaves
from .parcel import Parcel, send, send_other
from .stage import Stage


class Transit:
    """One tensor on its way to one reader, and its gradient on the way back."""

    def __init__(self, tensor: Tensor, target: torch.device) -> None:
        self._source = tensor.device
        self._parcel = send(tensor, target)
        self._returned: Parcel | None = None
        self.alias: Tensor | None = None  # what `Leave` returned, until `Enter`; None: no graph

    def take(self) -> Tensor:
        """Return the tensor on the reader's device; call this once only."""
        tensor = self._parcel.take()
        del self._parcel  # the graph keeps this object, and need not keep the tensor
        return tensor

    def take_alias(self) -> Tensor | None:
        """Return what `Leave` returned; further calls return None."""
        alias, self.alias = self.alias, None
        return alias

    def send_back(self, gradient: Tensor | None) -> Tensor | None:
        """Start to copy the gradient to the maker's device, and return it; see `take_back`."""
        if gradient is None:
            return None
        if torch.is_grad_enabled():  # create_graph=True
            return gradient.to(self._source)
        self._returned = send(gradient, self._source)
        return self._returned.tensor

    def take_back(self, gradient: Tensor | None) -> Tensor | None:
        """Return the gradient that `send_back` returned; the current stream waits for the copy."""
        returned, self._returned = self._returned, None
        if returned is not None and gradient is not None:
            returned.take()
        return gradient


class GraphMailbox:
    """Sends values to their readers for all micro-batches of a call; autograd sends gradients."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._readers: dict[str, list[Stage]] = defaultdict(list)
        for stage in stages:
            for name in stage.reads:
                self._readers[name].append(stage)
        # By the reading stage, the micro-batch and the name: values with transits for tensors.
        self._values: dict[tuple[int, int, str], Any] = {}

    def post(self, micro_batch: int, values: Mapping[str, Any]) -> None:
        """Send values to the stages that read them."""
        leaving: list[tuple[Transit, Tensor]] = []

        def start(leaf: Any, target: torch.device) -> Any:
            if not isinstance(leaf, Tensor):
                return send_other(leaf, target)
            transit = Transit(leaf, target)
            if leaf.requires_grad and torch.is_grad_enabled():
                leaving.append((transit, leaf))
            return transit

        for name, value in values.items():
            for reader in self._readers[name]:
                self._values[reader.index, micro_batch, name] = map_leaves(
                    value,
                    lambda leaf, _: start(leaf, reader.device),  # noqa: B023 - called here
                )
        if leaving:
            transits, tensors = zip(*leaving, strict=True)
            aliases = _Leave.apply(transits, *tensors)  # type: ignore[no-untyped-call]
            for transit, alias in zip(transits, aliases, strict=True):
                transit.alias = alias

    def fetch(self, stage: Stage, micro_batch: int) -> dict[str, Any]:
        """Return the values that a stage reads, on its device."""
        found = {name: self._values.pop((stage.index, micro_batch, name)) for name in stage.reads}
        transits = [leaf for leaf, _ in list_leaves(found) if isinstance(leaf, Transit)]
        taken = {transit: transit.take() for transit in transits}
        aliases = {transit: transit.take_alias() for transit in transits}
        entering = [transit for transit in transits if aliases[transit] is not None]
        if entering:
            entered = _Enter.apply(  # type: ignore[no-untyped-call]
                entering,
                [taken[transit] for transit in entering],
                *(aliases[transit] for transit in entering),
            )
            taken.update(zip(entering, entered, strict=True))
        values: dict[str, Any] = map_leaves(
            found, lambda leaf, _: taken[leaf] if isinstance(leaf, Transit) else leaf
        )
        return values


class _Leave(torch.autograd.Function):
    """Pass on the tensors that a stage made from one micro-batch, once for each reader."""

    @staticmethod
    def forward(ctx: Any, transits: Sequence[Transit], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.transits = transits
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        # Autograd adds what is returned for one tensor, in this order.
        pairs = zip(ctx.transits, gradients, strict=True)
        return None, *(transit.take_back(gradient) for transit, gradient in pairs)


class _Enter(torch.autograd.Function):
    """Replace the tensors that a stage reads for one micro-batch by the copies on its device."""

    @staticmethod
    def forward(
        ctx: Any, transits: Sequence[Transit], copies: Sequence[Tensor], *aliases: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transits = transits
        ctx.set_materialize_grads(False)
        return tuple(copy.detach() for copy in copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        pairs = zip(ctx.transits, gradients, strict=True)
        return None, None, *(transit.send_back(gradient) for transit, gradient in pairs)
