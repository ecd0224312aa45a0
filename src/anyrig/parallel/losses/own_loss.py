"""The check of a custom loss; see `halves`.

In a model's first step, the loss is computed three to four times more, of one part. A mean over
samples, a sum that is called one, and ``(sum, count)`` pass; a loss of the whole batch does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import BatchError, MixedDevicesError, MoveError
from ...transfer.location import device_of
from ...transfer.tree import ATOM_TYPES, list_leaves, map_leaves
from ..marks import tensors_with_gradients
from ..parts.call import without_trace
from ..parts.scatter import scatter_samples
from .checked_means import FEWEST
from .criterions import name_of
from .halves import Value, compute_half, follows, has_values, without_collectives
from .means_of_parts import counting_targets

# Other objects may hold tensors, whose graphs stay.
_DETACHED = (Tensor, *ATOM_TYPES)
_LEAF = "torch::autograd::AccumulateGrad"
_MOST_NODES = 256


@dataclass(frozen=True)
class HalvesCheck:
    """The check of a loss; see above.

    Attributes:
        dim: the dimension that has the samples.
        may_read_module: whether each part is computed by a module of its own, or after the other
            parts, so that the loss may use values of the part that its module has kept.
    """

    dim: int = 0
    may_read_module: bool = False

    def check(
        self, loss: Callable[[Any, Any], Any], output: Any, target: Any, samples: int, is_sum: bool
    ) -> None:
        """Raise BatchError if the loss of a part does not follow from those of its halves.

        Check nothing if the loss differs from call to call, communicates, returns a loss for each
        sample, or is not finite, or if the part has too few samples or cannot be divided: an output
        with an object that is not a tensor.
        """
        leaves = [leaf for leaf, _ in list_leaves(output)]
        if not self.may_read_module and all(isinstance(leaf, _DETACHED) for leaf in leaves):
            _refuse_kept_values(loss, output, target)
        if samples < FEWEST or not all(isinstance(leaf, Tensor) for leaf in leaves):
            return
        first = samples // 2
        counts = (first, samples - first)
        try:
            device = device_of((output, target))
        except (MixedDevicesError, MoveError):  # it cannot be divided
            return
        with _free_of_side_effects(loss, device):
            totals: list[Tensor] = []
            try:
                outputs, targets = (
                    scatter_samples(given, (device, device), counts, self.dim)
                    for given in (output, target)
                )
                with counting_targets(totals):
                    returned = loss(output, target)
                if any(returned is leaf for leaf in leaves):  # `own_numbers` checks it
                    return
                whole = Value.of(returned)
            except Exception:  # what cannot be done once more is not checked
                return
            if whole is None or not whole.is_finite:
                return
            try:
                parts = [
                    Value.of(compute_half(partial(loss, *half), totals, count / samples))
                    for *half, count in zip(outputs, targets, counts, strict=True)
                ]
            except Exception as error:
                if self.may_read_module:
                    return
                raise BatchError(
                    f"the loss {name_of(loss)} works for the {samples} samples of a part of the "
                    f"batch, but for {first} of these it raises {type(error).__name__}: {error}. "
                    "It uses values of the whole batch or of the module besides its arguments, and "
                    "each device has those of its part. Return what it needs from the module"
                ) from error
            if follows(whole, parts, counts, is_sum):
                return
            if Value.of(loss(output, target)) != whole:  # it is random, or has a state
                return
            if not all(map(has_values, leaves)):  # whatever it is, it was assumed
                return
        raise BatchError(_explain(name_of(loss), whole, parts, counts, is_sum))


def _refuse_kept_values(loss: Callable[[Any, Any], Any], output: Any, target: Any) -> None:
    """Raise BatchError if the loss has the graph of another value than its output.

    Two calls for an output without a graph share only the nodes that were there before.
    """
    try:
        device = device_of((output, target))
        output = map_leaves(
            output, lambda leaf, _: leaf.detach() if isinstance(leaf, Tensor) else leaf
        )
        free = _free_of_side_effects(loss, device)
        with free, torch.enable_grad(), counting_targets([]):
            graphs = [_nodes_of(loss(output, target)) for _ in range(2)]
    except Exception:  # what cannot be done once more is not checked
        return
    # A penalty of parameters shares the nodes that accumulate their gradients.
    kept = [node for node in graphs[0] if node in graphs[1] and node.name() != _LEAF]
    if kept:
        raise BatchError(
            f"the loss {name_of(loss)} uses a value that the module has computed and kept "
            f"({kept[0].name()}) besides its arguments. On several devices of one process each "
            "part has its own, and a loss sees that of the first. Return the value from the module"
        )


def _nodes_of(value: Any) -> list[Any]:
    """Return the nodes of the graphs of a loss that are nearest to it."""
    nodes: list[Any] = [each.grad_fn for each in tensors_with_gradients(value)]
    for node in nodes:
        if len(nodes) > _MOST_NODES:
            break
        nodes += [each for each, _ in node.next_functions if each not in (None, *nodes)]
    return nodes


@contextmanager
def _free_of_side_effects(loss: Any, device: torch.device) -> Iterator[None]:
    with without_trace([loss], [device]), without_collectives():
        yield


def _explain(
    name: str, whole: Value, parts: list[Value | None], counts: tuple[int, int], is_sum: bool
) -> str:
    values = " and ".join(str(part) for part in parts)
    found = (
        f"the loss {name} of {sum(counts)} samples is {whole}, but those of their halves, "
        f"{counts[0]} and {counts[1]} samples, are {values}"
    )
    if whole.count is not None:
        return (
            f"{found}: the sums and the counts of the parts of a batch are added up, so each "
            "part must return the sum and the count of its own samples"
        )
    if not is_sum and follows(whole, parts, counts, True):
        return (
            f"{found}: it is a sum over samples, and the losses of the parts of a batch are "
            "weighted by their samples. If it shall be a sum, give the function the attribute "
            "reduction = 'sum'; else return the mean"
        )
    return (
        f"{found}: it is not a {'sum' if is_sum else 'mean'} over samples, so the loss of a batch "
        "does not follow from those of its parts. Return (sum, count) for a mean over "
        "anything but samples, such as what a mask selects; compute a loss that compares samples "
        "with each other of what the model returns, without loss="
    )
