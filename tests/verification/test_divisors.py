"""By what a loss divides its sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from anyrig.verification.divisors import divisors_of

MASK = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
COUNT = MASK.sum()
LABELS = torch.tensor([0, 1, 1, -100])


def scores(x: Tensor) -> Tensor:
    return torch.stack([x, -x], 1)


@pytest.mark.parametrize(
    ("loss_of", "divisors"),
    [
        (lambda x: (x * MASK).sum() / COUNT, [3]),
        (lambda x: (x * MASK).sum() * (1 / COUNT), [3]),
        (lambda x: (1 / COUNT) * (x * MASK).sum(), [3]),
        (lambda x: -(x * MASK).sum().div(3).view(1), [3]),
        (lambda x: (x @ MASK / COUNT).float() / 4, [12]),
        (lambda x: x[MASK.bool()].mean(), [3]),
        (lambda x: functional.mse_loss(x, MASK), [4]),
        (lambda x: functional.mse_loss(x, MASK, reduction="sum") / 2, [2]),
        (lambda x: functional.cross_entropy(scores(x), LABELS), [3]),
        (lambda x: functional.cross_entropy(scores(x), LABELS, MASK[:2].add(1)), [4]),
        (lambda x: (x * MASK).sum() / COUNT + 0.5 * x.square().sum(), [3, 2]),
        (lambda x: (x * MASK).sum() / COUNT - 0.5 * x.square().sum(), [3, 2]),
        (lambda x: 1 - (x * MASK).sum() / COUNT, [3]),
        (lambda x: functional.cross_entropy(scores(x), LABELS, label_smoothing=0.5), [6, 12]),
        (lambda x: torch.ops.aten.mul.Scalar(x.sum(), 0.25), [4]),
        (lambda x: x.sum() / x.norm(), [1]),
        (lambda x: COUNT / (x * MASK).sum(), [1]),
        (lambda x: x.sum(), [1]),
    ],
)
def test_the_divisor_of_each_term(loss_of: Callable[[Tensor], Tensor], divisors: list[int]) -> None:
    loss = loss_of(torch.randn(4, dtype=torch.float64, requires_grad=True))
    assert divisors_of(loss) == pytest.approx(divisors, rel=1e-6)


def test_a_divisor_that_was_changed_in_place_is_unknown() -> None:
    count = COUNT.clone()
    loss = torch.ones(4, requires_grad=True).sum() / count
    count.add_(1)
    assert divisors_of(loss) == (1,)
    assert divisors_of(torch.ones(())) == ()
