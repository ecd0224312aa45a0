"""The loss part by part of PyTorch's criterions, and the entries that they ignore."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from part_losses import CLASS_WEIGHTS, CLASSES, DEVICES, ROWS, check, classes, scores
from torch import Tensor, nn
from torch.nn import functional

from anyrig.parallel.losses.criterions import recognise
from anyrig.parallel.losses.parallel_loss import ParallelLoss
from anyrig.parallel.parts.scatter import scatter

REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])

# name -> (makes a criterion from its reduction, output, target)
CASES: dict[str, tuple[Callable[[str], Any], Callable[[], Tensor], Callable[[], Tensor]]] = {
    "cross entropy": (
        lambda r: nn.CrossEntropyLoss(reduction=r),
        lambda: scores(CLASSES),
        lambda: classes(),
    ),
    "cross entropy, per token": (
        lambda r: nn.CrossEntropyLoss(reduction=r, ignore_index=0),
        lambda: scores(CLASSES, 7),
        lambda: classes(7, index=0),
    ),
    "cross entropy, per pixel, weights": (
        lambda r: nn.CrossEntropyLoss(CLASS_WEIGHTS, reduction=r, ignore_index=1),
        lambda: scores(CLASSES, 3, 4),
        lambda: classes(3, 4, index=1),
    ),
    "cross entropy, ignored beyond the classes": (
        lambda r: nn.CrossEntropyLoss(CLASS_WEIGHTS, reduction=r, ignore_index=255),
        lambda: scores(CLASSES, 3, 4),
        lambda: classes(3, 4, index=255),
    ),
    "cross entropy, smoothed": (
        lambda r: nn.CrossEntropyLoss(reduction=r, label_smoothing=0.2),
        lambda: scores(CLASSES),
        lambda: classes(),
    ),
    "cross entropy, smoothed, weights": (
        lambda r: nn.CrossEntropyLoss(CLASS_WEIGHTS, reduction=r, label_smoothing=0.2),
        lambda: scores(CLASSES, 3),
        lambda: classes(3),
    ),
    "cross entropy of probabilities": (
        lambda r: nn.CrossEntropyLoss(CLASS_WEIGHTS, reduction=r, label_smoothing=0.1),
        lambda: scores(CLASSES, 3),
        lambda: scores(CLASSES, 3).softmax(1),
    ),
    "negative log likelihood": (
        lambda r: nn.NLLLoss(CLASS_WEIGHTS, reduction=r, ignore_index=2),
        lambda: scores(CLASSES),
        lambda: classes(index=2),
    ),
    "squares": (
        lambda r: nn.MSELoss(reduction=r),
        lambda: scores(3, 2),
        lambda: scores(3, 2),
    ),
    "absolutes": (lambda r: nn.L1Loss(reduction=r), lambda: scores(3), lambda: scores(3)),
    "smooth absolutes": (
        lambda r: nn.SmoothL1Loss(reduction=r, beta=0.5),
        lambda: scores(3),
        lambda: scores(3),
    ),
    "huber": (
        lambda r: nn.HuberLoss(reduction=r, delta=0.7),
        lambda: scores(),
        lambda: scores(),
    ),
    "binary": (
        lambda r: nn.BCELoss(reduction=r),
        lambda: scores(4).sigmoid(),
        lambda: scores(4).sigmoid(),
    ),
    "binary of logits": (
        lambda r: nn.BCEWithLogitsLoss(CLASS_WEIGHTS, reduction=r, pos_weight=CLASS_WEIGHTS),
        lambda: scores(CLASSES),
        lambda: scores(CLASSES).sigmoid(),
    ),
    "divergence": (
        lambda r: nn.KLDivLoss(reduction="batchmean" if r == "mean" else r),
        lambda: scores(3, 2).log_softmax(1),
        lambda: scores(3, 2).softmax(1),
    ),
    "soft margin": (
        lambda r: nn.SoftMarginLoss(reduction=r),
        lambda: scores(3),
        lambda: scores(3).sign(),
    ),
    "hinge": (
        lambda r: nn.HingeEmbeddingLoss(reduction=r),
        lambda: scores(3),
        lambda: scores(3).sign(),
    ),
    "poisson": (
        lambda r: nn.PoissonNLLLoss(reduction=r, full=True),
        lambda: scores(3),
        lambda: scores(3).abs(),
    ),
    "margins": (
        lambda r: nn.MultiMarginLoss(weight=CLASS_WEIGHTS, reduction=r),
        lambda: scores(CLASSES),
        lambda: classes(ignored=0),
    ),
    "margins of several labels": (
        lambda r: nn.MultiLabelMarginLoss(reduction=r),
        lambda: scores(CLASSES),
        lambda: torch.tensor([[3, 0, -1, 1, 2]]).repeat(ROWS, 1),
    ),
    "soft margins of several labels": (
        lambda r: nn.MultiLabelSoftMarginLoss(CLASS_WEIGHTS, reduction=r),
        lambda: scores(CLASSES),
        lambda: (scores(CLASSES) > 0).double(),
    ),
    "soft margins of several labels, per token": (
        lambda r: nn.MultiLabelSoftMarginLoss(reduction=r),
        lambda: scores(7, CLASSES),
        lambda: (scores(7, CLASSES) > 0).double(),
    ),
    "soft margins of several labels, a function, per pixel": (
        lambda r: functools.partial(
            functional.multilabel_soft_margin_loss, weight=CLASS_WEIGHTS, reduction=r
        ),
        lambda: scores(3, 4, CLASSES),
        lambda: (scores(3, 4, CLASSES) > 0).double(),
    ),
    "a function": (
        lambda r: (
            functional.smooth_l1_loss
            if r == "mean"
            else functools.partial(functional.smooth_l1_loss, reduction=r)
        ),
        lambda: scores(2),
        lambda: scores(2),
    ),
    "a function with settings": (
        lambda r: functools.partial(
            functional.cross_entropy, weight=CLASS_WEIGHTS, ignore_index=4, reduction=r
        ),
        lambda: scores(CLASSES, 2),
        lambda: classes(2, index=4),
    ),
}
if hasattr(nn, "LinearCrossEntropyLoss"):
    CASES["linear cross entropy"] = (
        lambda r: nn.LinearCrossEntropyLoss(
            3, CLASSES, dtype=torch.float64, reduction=r, ignore_index=0
        ),
        lambda: scores(3),
        lambda: classes(index=0),
    )


@pytest.mark.gpus(3)
@REDUCTIONS
@pytest.mark.parametrize("case", CASES)
def test_criterions_of_pytorch(case: str, reduction: str) -> None:
    torch.manual_seed(0)
    make, output, target = CASES[case]
    criterion = make(reduction)
    assert recognise(criterion) is not None
    for shares in (None, (5, 2, 1), (0, 1, 0), (7, 0, 1)):
        check(criterion, output(), target(), shares)


@pytest.mark.gpus(3)
@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 2**16),
)
@settings(deadline=None, max_examples=40)
def test_whatever_is_ignored_and_wherever(
    shares: list[int], ignored: float, weighted: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    criterion = nn.CrossEntropyLoss(CLASS_WEIGHTS + 0.1 if weighted else None)
    target = classes(3, ignored=ignored)
    target[0] = 0  # at least one target counts
    check(criterion, scores(CLASSES, 3), target, shares)


@pytest.mark.gpus(3)
def test_a_part_of_classes_without_weight_does_not_spoil_the_gradients() -> None:
    criterion = nn.CrossEntropyLoss(CLASS_WEIGHTS)  # class 2 has weight 0
    target = torch.tensor([2] * 4 + [1] * 8)
    check(criterion, scores(CLASSES), target, (1, 1, 1))


@pytest.mark.gpus(3)
def test_all_ignored_is_what_it_is_for_the_whole_batch() -> None:
    x = torch.randn(6, CLASSES, requires_grad=True)
    target = torch.full((6,), -100)
    whole = nn.CrossEntropyLoss()(x, target)
    loss = ParallelLoss(nn.CrossEntropyLoss(), "cpu")(scatter(x, DEVICES), target)
    assert math.isnan(whole.item())
    assert math.isnan(loss.item())
    assert torch.equal(torch.autograd.grad(loss, x)[0], torch.autograd.grad(whole, x)[0])
    summed = nn.CrossEntropyLoss(reduction="sum")
    assert ParallelLoss(summed)(scatter(x, DEVICES), target).item() == 0


@pytest.mark.gpus(3)
def test_a_batch_without_rows() -> None:
    outputs = scatter(torch.ones(0, 2), DEVICES)
    assert math.isnan(ParallelLoss(nn.MSELoss())(outputs, torch.ones(0, 2)).item())
