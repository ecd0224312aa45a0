"""A stage: neighbouring blocks of a chain, which one device computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....transfer.streams import using
from ....transfer.tree import list_leaves, map_leaves
from .chain import Block
from .other_leaves import refuse_other_leaves
from .recompute import recomputed
from .slots import Slot, list_slots, replaced
from .torch_layers import TorchLayers
from .weight_gradients import DeferredWeights, compute_weights

# For each value that a stage reads or writes, one gradient for each tensor in the value.
Gradients = dict[str, list[Tensor | None]]
Replacements = Sequence[tuple[Slot, Tensor]]


@dataclass(frozen=True)
class Graph:
    """What a stage keeps of one micro-batch between its forward and its backward pass."""

    inputs: Mapping[str, list[Tensor]]
    outputs: Mapping[str, list[Tensor]]
    deferred: DeferredWeights | None


class Stage:
    """Neighbouring blocks of a chain, on one device.

    `compute` is part of the caller's graph. `forward` and `backward` keep a graph for each
    micro-batch, which ends at the values that the stage reads and writes, so the stages may lie in
    one process or in several.

    Attributes:
        index: the number of the stage.
        device: where the stage computes.
        blocks: in order of computation.
        reads: the names of the values that the stage needs from earlier stages or the arguments.
        writes: the names of its values that later stages or the result need.
        turn: a lock, the same for all stages of a module; see `recomputed`.
        slots: the places of the parameters and buffers.
    """

    def __init__(
        self,
        index: int,
        device: torch.device,
        blocks: Sequence[Block],
        reads: Sequence[str],
        writes: Sequence[str],
        turn: AbstractContextManager[Any],
    ) -> None:
        self.index = index
        self.device = device
        self.blocks = tuple(blocks)
        self.reads = tuple(reads)
        self.writes = tuple(writes)
        self.turn = turn
        self.slots = list_slots(block.module for block in blocks)
        self._last_uses = _last_uses(blocks, writes)
        self._layers = TorchLayers(block.module for block in blocks)
        self._graphs: dict[int, Graph] = {}
        self._deferred: dict[int, DeferredWeights] = {}

    def compute(
        self,
        values: Mapping[str, Any],
        replacements: Replacements = (),
        recompute: bool = False,
        deferred: DeferredWeights | None = None,
    ) -> dict[str, Any]:
        """Return the written values, as a part of the caller's graph.

        Args:
            values: the values that the stage reads, on its device.
            replacements: other tensors for places of the modules.
            recompute: keep only `values`, and compute the activations again in the backward pass.
            deferred: leaves the gradients of weights for later.
        """
        with on_device(self.device):
            if recompute and torch.is_grad_enabled():
                written: dict[str, Any] = recomputed(
                    lambda given: self._compute(dict(given), replacements, deferred),
                    dict(values),
                    self.device,
                    self.turn,
                )
                return written
            return self._compute(dict(values), replacements, deferred)

    def forward(
        self,
        micro_batch: int,
        values: Mapping[str, Any],
        then: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        replacements: Replacements = (),
        recompute: bool = False,
        defer: bool = False,
        check: bool = False,
    ) -> dict[str, Any]:
        """Return the written values of a micro-batch, and keep their graph for `backward`.

        Args:
            micro_batch: the number of the micro-batch.
            values: the values that the stage reads, on its device. `backward` returns the gradients
                of tensors that require grad, which are leaves.
            then: computes other values from the written ones, such as a loss, which are returned
                instead.
            replacements: other tensors for places of the modules: leaves, to whose ``.grad``
                `backward` adds.
            recompute: keep only `values`, and compute the activations again in `backward`.
            defer: leave gradients of weights for `backward_weights`.
            check: refuse a graph that leads to other leaves, whose gradients would be lost.

        Returns:
            The values without a graph. A tensor requires grad if `backward` needs its gradient.
        """
        leaves = leaves_of(replacements) if defer or check else []
        deferred = DeferredWeights(leaves) if defer else None
        with torch.enable_grad():
            # A leaf that requires grad may not be changed in place, but its alias may.
            opened = _map_tensors(dict(values), _open)
            written = self.compute(opened, replacements, recompute, deferred)
            if then is not None:
                written = then(written)
        inputs = {name: tensors_of(value) for name, value in values.items()}
        outputs = {name: tensors_of(value) for name, value in written.items()}
        learning = [one for tensors in outputs.values() for one in tensors if one.requires_grad]
        if learning:
            if check:
                read = [one for tensors in inputs.values() for one in tensors]
                refuse_other_leaves(learning, [*read, *leaves], self.index)
            self._graphs[micro_batch] = Graph(inputs, outputs, deferred)
        returned: dict[str, Any] = detached(written)
        return returned

    def backward(
        self, micro_batch: int, gradients: Gradients, parameters: Sequence[Tensor]
    ) -> Gradients:
        """Return the gradients of a micro-batch's read values, given those of the written ones.

        Gradients of `parameters`, the leaves among the replacements of `forward`, are added to
        their ``.grad``.
        """
        graph = self._graphs.pop(micro_batch, None)
        if graph is None:
            return {}
        pairs = [
            (output, gradient)
            for name, outputs in graph.outputs.items()
            for output, gradient in zip(outputs, gradients.get(name, ()), strict=False)
            if gradient is not None and output.requires_grad
        ]
        inputs = [one for tensors in graph.inputs.values() for one in tensors if one.requires_grad]
        if pairs and (inputs or parameters):
            outputs, given = zip(*pairs, strict=True)
            deferred = graph.deferred
            collecting = nullcontext() if deferred is None else deferred.collecting()
            with on_device(self.device), collecting:
                # Without `inputs=`, for which the engine would look at each node first. The graph
                # leads to `inputs` and `parameters` alone: see `refuse_other_leaves`.
                torch.autograd.backward(outputs, given)
            if deferred is not None:
                self._deferred[micro_batch] = deferred
        return {name: [one.grad for one in tensors] for name, tensors in graph.inputs.items()}

    def backward_weights(self, micro_batches: Sequence[int]) -> None:
        """Compute the gradients that `forward` was told to defer, after `backward`."""
        kept = [self._deferred.pop(number, None) for number in micro_batches]
        with on_device(self.device):
            compute_weights([each for each in kept if each is not None])

    def forget(self) -> None:
        """Drop what is kept of all micro-batches, after a failure."""
        self._graphs.clear()
        self._deferred.clear()

    def _compute(
        self, known: dict[str, Any], replacements: Replacements, deferred: DeferredWeights | None
    ) -> dict[str, Any]:
        deferring = nullcontext() if deferred is None else self._layers.deferring(deferred)
        with replaced(replacements), deferring:
            for block, unused in zip(self.blocks, self._last_uses, strict=True):
                known.update(block.compute(known))
                for name in unused:
                    known.pop(name, None)
        return {name: known[name] for name in self.writes}


def on_device(device: torch.device) -> Any:
    """Return a context in which `device` is the current one."""
    if device.type in ("cpu", "meta"):
        return nullcontext()
    return using(torch.accelerator.current_stream(device))


def leaves_of(replacements: Replacements) -> list[Tensor]:
    """Return the replacing tensors that collect gradients, each once."""
    return list(dict.fromkeys(tensor for _, tensor in replacements if tensor.requires_grad))


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in a value, each once, in a fixed order."""
    if isinstance(value, Tensor):
        return [value]
    return [leaf for leaf, _ in list_leaves(value) if isinstance(leaf, Tensor)]


def detached(tree: Any) -> Any:
    """Return a value with its tensors outside any graph; each keeps whether it requires grad."""
    return _map_tensors(tree, lambda one: one.detach().requires_grad_(one.requires_grad))


def _map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a value with its tensors changed; see `map_leaves`."""
    if type(tree) is dict and len(tree) == 1:  # most stages read and write one tensor
        ((name, value),) = tree.items()
        if isinstance(value, Tensor):
            return {name: change(value)}
    return map_leaves(tree, lambda leaf, _: change(leaf) if isinstance(leaf, Tensor) else leaf)


class _Open(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return gradients[0]


def _open(tensor: Tensor) -> Tensor:
    if tensor.requires_grad:
        opened: Tensor = _Open.apply(tensor)  # type: ignore[no-untyped-call]
        return opened
    return tensor


def _last_uses(blocks: Sequence[Block], writes: Sequence[str]) -> list[list[str]]:
    """Return the names of values that no later block reads, for each block."""
    needed, unused = set(writes), []
    for block in reversed(blocks):
        names = {*block.reads, *block.writes} - needed
        unused.append(sorted(names))
        needed |= {*block.reads}
    return unused[::-1]
