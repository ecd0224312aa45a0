"""What PyTorch's criterions divide by when they take a mean.

A mean over a batch is not the mean of the means over its parts, unless the parts are weighted by
what each counted: the targets that were not ignored, their class weights, or the elements. So a
part is computed as a sum, with the count beside it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

# Given output, target and the criterion's settings.
Count = Callable[[Tensor, Tensor, Mapping[str, Any]], "Tensor | float"]


def count_targets(output: Tensor, target: Tensor, settings: Mapping[str, Any]) -> Tensor | float:
    """Return the class weights of the targets that are not ignored, summed; without weights, how
    many there are. Targets that are probabilities count one a sample, weights or not.
    """
    if target.is_floating_point():
        classes = target.size(1) if target.dim() > 1 else target.size(0)
        return target.numel() / classes if classes else 0.0
    ignored = settings.get("ignore_index")
    counted = target != (-100 if ignored is None else ignored)
    weight = settings.get("weight")
    if weight is None:
        return counted.sum()
    return torch.where(counted, weight[torch.where(counted, target, 0)], 0).sum()


def count_elements(output: Tensor, target: Tensor, settings: Mapping[str, Any]) -> float:
    """Return the elements of output and target, broadcast to each other."""
    shape: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        output.shape, target.shape
    )
    return shape.numel()


def count_samples(output: Tensor, target: Tensor, settings: Mapping[str, Any]) -> float:
    """Return the samples, whose classes are the last dimension of the output."""
    return output.shape[:-1].numel()


def count_divergences(output: Tensor, target: Tensor, settings: Mapping[str, Any]) -> float:
    """Return the first dimension for ``reduction="batchmean"``, else the elements."""
    if settings.get("reduction") == "batchmean":
        return output.size(0)
    return count_elements(output, target, settings)


_OF_MODULE: dict[type[nn.Module], Count] = {
    nn.CrossEntropyLoss: count_targets,
    nn.NLLLoss: count_targets,
    nn.L1Loss: count_elements,
    nn.MSELoss: count_elements,
    nn.SmoothL1Loss: count_elements,
    nn.HuberLoss: count_elements,
    nn.BCELoss: count_elements,
    nn.BCEWithLogitsLoss: count_elements,
    nn.SoftMarginLoss: count_elements,
    nn.HingeEmbeddingLoss: count_elements,
    nn.PoissonNLLLoss: count_elements,
    nn.KLDivLoss: count_divergences,
    nn.MultiMarginLoss: count_samples,
    nn.MultiLabelMarginLoss: count_samples,
    nn.MultiLabelSoftMarginLoss: count_samples,
}
if hasattr(nn, "LinearCrossEntropyLoss"):  # newer than the oldest PyTorch that is supported
    _OF_MODULE[nn.LinearCrossEntropyLoss] = count_targets

_OF_FUNCTION: dict[Any, Count] = {
    functional.cross_entropy: count_targets,
    functional.nll_loss: count_targets,
    functional.l1_loss: count_elements,
    functional.mse_loss: count_elements,
    functional.smooth_l1_loss: count_elements,
    functional.huber_loss: count_elements,
    functional.binary_cross_entropy: count_elements,
    functional.binary_cross_entropy_with_logits: count_elements,
    functional.soft_margin_loss: count_elements,
    functional.hinge_embedding_loss: count_elements,
    functional.poisson_nll_loss: count_elements,
    functional.kl_div: count_divergences,
    functional.multi_margin_loss: count_samples,
    functional.multilabel_margin_loss: count_samples,
    functional.multilabel_soft_margin_loss: count_samples,
}
# With one of these the mean is another: deprecated ways to choose it, and weights of elements.
_DIVIDES_OTHERWISE = {"size_average", "reduce"}
_WEIGHS_ELEMENTS = {functional.l1_loss, functional.mse_loss, functional.huber_loss}


@dataclass(frozen=True)
class Known:
    """A criterion of PyTorch, and how it takes a mean.

    Attributes:
        settings: what it was made with: ``reduction``, and for some ``ignore_index``, ``weight``.
        count: what its mean divides by.
        summed: the same criterion with ``reduction="sum"``.
    """

    settings: Mapping[str, Any]
    count: Count
    summed: Callable[[Any, Any], Tensor]

    @property
    def by_elements(self) -> bool:
        """Whether it takes elements of output and target in pairs, and broadcasts them."""
        return self.count in (count_elements, count_divergences)


def recognise(criterion: Any) -> Known | None:
    """Return what is known of a criterion: a module of `torch.nn`, a subclass that keeps its
    forward, a function of `torch.nn.functional`, or a `functools.partial` of one with keywords.
    """
    if isinstance(criterion, nn.Module):
        for cls in type(criterion).__mro__:
            if cls in _OF_MODULE and type(criterion).forward is cls.forward:
                return Known(vars_of(criterion), _OF_MODULE[cls], _summed(criterion))
        return None
    settings: Mapping[str, Any] = MappingProxyType({})
    if isinstance(criterion, functools.partial) and not criterion.args:
        criterion, settings = criterion.func, criterion.keywords
    count = _OF_FUNCTION.get(criterion) if isinstance(criterion, FunctionType) else None
    if (
        count is None
        or _DIVIDES_OTHERWISE & settings.keys()
        or (criterion in _WEIGHS_ELEMENTS and "weight" in settings)
    ):
        return None
    summed = functools.partial(criterion, **{**settings, "reduction": "sum"})
    return Known({"reduction": "mean", **settings}, count, summed)


def vars_of(criterion: nn.Module) -> Mapping[str, Any]:
    """Return the settings of a criterion: its attributes and its buffers."""
    return {**vars(criterion), **dict(criterion.named_buffers(recurse=False))}


def _summed(criterion: nn.Module) -> Callable[[Any, Any], Tensor]:
    # A shallow copy has the same parameters, buffers and hooks. The caller's criterion is not
    # changed, not even for a moment: other threads may be in it.
    summed: Any = copy.copy(criterion)
    summed.reduction = "sum"
    return cast("Callable[[Any, Any], Tensor]", summed)
