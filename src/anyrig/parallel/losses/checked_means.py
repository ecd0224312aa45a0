"""Checks of a model's first call for means over targets that parts of a batch do not show."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...errors import SpreadError
from ...transfer.tree import list_leaves
from .target_means import TargetMean, read_mean


class CheckedCalls:
    """The calls of one model that were checked: the first with each set of keyword arguments."""

    def __init__(self) -> None:
        self._seen: set[frozenset[str]] = set()

    def needs_check(self, module: nn.Module, kwargs: Mapping[str, Any]) -> bool:
        """Return whether no call with the same keyword arguments was checked yet.

        Calls of modules that are compiled are not checked, since they would be compiled twice.
        """
        names = frozenset(name for name, value in kwargs.items() if value is not None)
        if names in self._seen:
            return False
        self._seen.add(names)
        return not any(
            layer._compiled_call_impl is not None or "_orig_mod" in layer._modules
            for layer in module.modules()
        )


@dataclass(frozen=True)
class FirstCall:
    """A call that is checked.

    Attributes:
        samples: the number of samples of this part.
        given: the arguments of this part.
        has_loss: whether the model was given a loss, which sees to sums.
    """

    samples: int
    given: Any
    has_loss: bool

    def refuse_contrast(self, mean: TargetMean) -> None:
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


class CheckFunctions(TorchFunctionMode):
    """Sees the calls of functions under any name.

    Args:
        originals: functions that were replaced under their own names.
        is_replaced: whether a function that replaces one of these is being called.
        refuses_sums: whether sums over targets are refused.
    """

    def __init__(
        self,
        originals: Collection[Callable[..., Any]],
        is_replaced: Callable[[], bool],
        refuses_sums: bool,
    ) -> None:
        super().__init__()
        self._originals, self._is_replaced = originals, is_replaced
        self._refuses_sums = refuses_sums

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, or raise SpreadError if it is an original that takes a mean or sum."""
        kwargs = kwargs or {}
        # PyTorch's functions pass on what they find under their own name.
        original = inspect.unwrap(func)
        is_meant = original in self._originals
        total = read_mean(original, args, kwargs, "sum") if is_meant else None
        if total is not None and self._refuses_sums and total.output.requires_grad:
            raise SpreadError(
                f"the module sums the losses of targets, {original.__name__}(…, reduction='sum'), "
                "and what it divides the sum by is not known: the number of one part's targets, or "
                "that of the whole batch, as num_items_in_batch is. Parts are weighted by samples. "
                "Let the module take the mean, which is over the targets of all parts (in "
                "transformers, leave num_items_in_batch out); or give spread a loss= that returns "
                "(sum, count)"
            )
        if is_meant and not self._is_replaced() and read_mean(original, args, kwargs) is not None:
            raise SpreadError(
                f"a mean over targets is computed by {original.__name__} under a name of its own, "
                "so its targets are not counted with those of the other parts of the batch. Call "
                f"it as torch.nn.functional.{original.__name__}, not by a name that was imported "
                "or kept before"
            )
        return func(*args, **kwargs)
