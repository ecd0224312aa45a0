"""What PyTorch's criterions divide by when they take a mean.

The mean over a batch is the sum of its parts' sums, divided by the sum of the parts' counts. A
count is the number of targets that are not ignored, of samples or of elements, or the sum of class
weights.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Called with output, target and the criterion's settings.
Count = Callable[[Tensor, Tensor, Mapping[str, Any]], "Tensor | float"]


def _count_targets(output: Tensor, target: Tensor, settings: Mapping[str, Any]) -> Tensor | float:
    """Return the number of targets that are not ignored, or the sum of their class weights.

    Targets that are probabilities count as one target for each sample.
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


def _count_elements(output: Tensor, target: Tensor, settings: Mapping[str, Any]) -> float:
    """Return the number of elements, or of samples for ``reduction="batchmean"``."""
    return output.size(0) if settings.get("reduction") == "batchmean" else output.numel()


def _count_samples(output: Tensor, target: Tensor, settings: Mapping[str, Any]) -> float:
    """Return the number of samples; the output's last dimension has the classes."""
    return output.shape[:-1].numel()


_CRITERIONS: tuple[tuple[Count, Any, Any], ...] = (
    (_count_targets, nn.CrossEntropyLoss, functional.cross_entropy),
    (_count_targets, nn.NLLLoss, functional.nll_loss),
    (_count_elements, nn.L1Loss, functional.l1_loss),
    (_count_elements, nn.MSELoss, functional.mse_loss),
    (_count_elements, nn.SmoothL1Loss, functional.smooth_l1_loss),
    (_count_elements, nn.HuberLoss, functional.huber_loss),
    (_count_elements, nn.BCELoss, functional.binary_cross_entropy),
    (_count_elements, nn.BCEWithLogitsLoss, functional.binary_cross_entropy_with_logits),
    (_count_elements, nn.SoftMarginLoss, functional.soft_margin_loss),
    (_count_elements, nn.HingeEmbeddingLoss, functional.hinge_embedding_loss),
    (_count_elements, nn.PoissonNLLLoss, functional.poisson_nll_loss),
    (_count_elements, nn.KLDivLoss, functional.kl_div),
    (_count_samples, nn.MultiMarginLoss, functional.multi_margin_loss),
    (_count_samples, nn.MultiLabelMarginLoss, functional.multilabel_margin_loss),
    (_count_samples, nn.MultiLabelSoftMarginLoss, functional.multilabel_soft_margin_loss),
)
_COUNTS: dict[Any, Count] = {criterion: count for count, *both in _CRITERIONS for criterion in both}
if hasattr(nn, "LinearCrossEntropyLoss"):  # missing in the oldest PyTorch that anyrig supports
    _COUNTS[nn.LinearCrossEntropyLoss] = _count_targets
    _COUNTS[functional.linear_cross_entropy] = _count_targets

# Arguments with which a function divides by something else: deprecated reductions, and weights.
_DIVIDES_OTHERWISE = {"size_average", "reduce"}
_WEIGHS_ELEMENTS = {functional.l1_loss, functional.mse_loss, functional.huber_loss}


@dataclass(frozen=True)
class Known:
    """One of PyTorch's criterions."""

    settings: Mapping[str, Any]  # ``reduction``, and for some ``ignore_index`` or ``weight``
    count: Count  # returns what the criterion's mean divides by
    summed: Callable[[Any, Any], Tensor]  # the same criterion with ``reduction="sum"``

    @property
    def by_elements(self) -> bool:
        """Whether the criterion pairs the elements of output and target, and broadcasts them."""
        return self.count is _count_elements

    @property
    def by_targets(self) -> bool:
        """Whether the mean divides by the targets that count, which depends on their values."""
        return self.count is _count_targets


def recognise(criterion: Any) -> Known | None:
    """Return one of PyTorch's criterions as sum and count; None for any other.

    PyTorch's criterions are modules of `torch.nn`, subclasses that keep the forward, functions of
    `torch.nn.functional`, and `functools.partial` of such a function with keywords only.
    """
    if isinstance(criterion, nn.Module):
        cls: Any
        for cls in type(criterion).__mro__:
            if cls in _COUNTS and type(criterion).forward is cls.forward:
                settings = {**vars(criterion), **dict(criterion.named_buffers(recurse=False))}
                # A shallow copy shares parameters, buffers and hooks. Other threads may be calling
                # the caller's criterion, so it is never changed.
                summed: Any = copy.copy(criterion)
                summed.reduction = "sum"
                return Known(settings, _COUNTS[cls], summed)
        return None
    given: dict[str, Any] = {}
    if isinstance(criterion, functools.partial) and not criterion.args:
        criterion, given = criterion.func, criterion.keywords
    count = _COUNTS.get(criterion) if isinstance(criterion, FunctionType) else None
    weighs = criterion in _WEIGHS_ELEMENTS and "weight" in given
    if count is None or weighs or _DIVIDES_OTHERWISE & given.keys():
        return None
    summed = functools.partial(criterion, **{**given, "reduction": "sum"})
    return Known({"reduction": "mean", **given}, count, summed)


def name_of(criterion: Any) -> str:
    """Return the name of a criterion for messages."""
    if isinstance(criterion, functools.partial):
        return name_of(criterion.func)
    return getattr(criterion, "__name__", type(criterion).__name__)
