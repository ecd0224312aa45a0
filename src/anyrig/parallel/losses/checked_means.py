"""Checks of a model's first call for means and sums that cannot be computed from parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import MoveError, SpreadError
from ...transfer.tree import list_leaves
from ..marks import tensors_with_gradients
from .target_means import TargetMean, read_mean

# The nodes of the graph that cross_entropy and nll_loss make.
_OF_TARGETS = "NllLoss"
# A loss is computed from a few others, with scales and sums.
_MOST_NODES = 64

# How many samples a loss is checked for. One half has two, which do not broadcast to the values of
# a whole part.
FEWEST = 3


class CheckedCalls:
    """The calls of one model that were checked: the first with each set of keyword arguments."""

    def __init__(self) -> None:
        self._seen: set[frozenset[str]] = set()
        self._in_halves: set[tuple[str, frozenset[str], bool]] = set()
        self._samples_of_loss = 0  # of the largest part whose loss was checked, up to FEWEST

    def note(self, kwargs: Mapping[str, Any]) -> bool:
        """Note a call; return whether it is the first with these keyword arguments."""
        names = _names(kwargs)
        is_new = names not in self._seen
        self._seen.add(names)
        return is_new

    def note_halves(self, kwargs: Mapping[str, Any], samples: int, method: str = "") -> bool:
        """Note a call for `samples` samples; return whether to compare it with its halves."""
        key = method, _names(kwargs), torch.is_grad_enabled()
        is_new = samples > 1 and key not in self._in_halves
        if is_new:
            self._in_halves.add(key)
        return is_new

    def note_loss(self, samples: int) -> bool:
        """Note that a loss of `samples` samples is computed; return whether it is to be checked."""
        enough = min(samples, FEWEST)
        is_first = enough > self._samples_of_loss
        self._samples_of_loss = max(self._samples_of_loss, enough)
        return is_first


def _names(kwargs: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, value in kwargs.items() if value is not None)


@dataclass(frozen=True)
class FirstCall:
    """A call that is checked.

    Attributes:
        samples: the number of samples of this part.
        given: the arguments of this part.
        has_loss: whether the model computes a given loss, which is checked by itself.
        seen: the nodes of the graph that the replaced functions have made.
    """

    samples: int
    given: Any
    has_loss: bool
    seen: list[Any] = field(default_factory=list)

    def check(self, function: Callable[..., Any], args: Any, kwargs: Any, value: Tensor) -> None:
        """Note a call of a function that was replaced; raise SpreadError if it is refused."""
        self.seen.append(value.grad_fn)
        mean = read_mean(function, args, kwargs)
        if mean is not None:
            self._refuse_contrast(mean)
        if value.requires_grad and not self.has_loss and read_mean(function, args, kwargs, "sum"):
            raise SpreadError(
                f"the module sums the losses of targets, {function.__name__}(…, reduction='sum'), "
                "and what it divides the sum by is not known: the number of one part's targets, or "
                "that of the whole batch, as num_items_in_batch is. Parts are weighted by samples. "
                "Let the module take the mean, which is over the targets of all parts (in "
                "transformers, leave num_items_in_batch out); or give spread a loss= that returns "
                "(sum, count)"
            )

    def check_output(self, output: Any) -> None:
        """Raise SpreadError if the module computed `output` by a function that was not replaced.

        A loss is checked where it is computed.
        """
        if not self.has_loss:
            refuse_unseen(output, self.seen)

    def _refuse_contrast(self, mean: TargetMean) -> None:
        """Raise SpreadError if a mean compares the samples of this part with each other.

        Its targets are the numbers of the samples, and no argument has them.
        """
        scores, targets, samples = mean.output, mean.target, self.samples
        if samples < 2 or tuple(scores.shape) != (samples, samples):
            return
        if targets.is_floating_point() or targets.is_meta or not self._are_numbers(targets):
            return
        raise SpreadError(
            f"a mean over targets compares the {samples} samples of one part of the batch with "
            "each other, as a contrastive loss does: samples of other parts are missing in it. Let "
            "the module return the features, and compute the loss of what the model returns; over "
            "ranks, of anyrig.gather_over_ranks(model(x))"
        )

    def _are_numbers(self, targets: Tensor) -> bool:
        memory = targets.untyped_storage().data_ptr()
        if any(
            isinstance(leaf, Tensor)
            and leaf.layout is torch.strided
            and leaf.untyped_storage().data_ptr() == memory
            for leaf, _ in list_leaves(self.given)
        ):
            return False
        return targets.tolist() == [*range(self.samples)]


def refuse_unseen(returned: Any, seen: Collection[Any]) -> None:
    """Raise SpreadError if a number was computed by a function that was not replaced.

    Args:
        returned: what a module or a loss has returned.
        seen: the nodes of the graph that the replaced functions have made.
    """
    numbers: list[Tensor] = []
    with suppress(MoveError):  # of what contains itself, which is refused where outputs are joined
        numbers = [each for each in tensors_with_gradients(returned) if not each.dim()]
    left = [each.grad_fn for each in numbers]
    known = {None, *seen}
    for _ in range(_MOST_NODES):
        node = left.pop(0) if left else None
        if node in known:
            if not left:
                return
            continue
        known.add(node)
        assert node is not None
        if node.name().startswith(_OF_TARGETS):
            raise SpreadError(
                "a number is computed by cross_entropy or nll_loss under an imported or stored "
                "name, so its targets are not counted together with those of the other parts of "
                "the batch. Call the function as torch.nn.functional.cross_entropy"
            )
        left += [each for each, _ in node.next_functions]
