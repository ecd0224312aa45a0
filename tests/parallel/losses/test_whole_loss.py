"""Sums of losses and counts that several processes add up."""

from __future__ import annotations

import torch

from anyrig.parallel.losses.loss_part import LossPart
from anyrig.parallel.losses.whole import sums_of, whole_of


def test_sums_are_exact_for_the_counts_of_large_batches() -> None:
    count = 2**24 + 1  # the first whole number that float32 does not have
    part = LossPart(torch.tensor(3.0), count, True, torch.float32)
    sums = sums_of([part], torch.device("cpu"))
    assert sums.tolist() == [3.0, count, 1.0]
    whole, divisor = whole_of(2 * sums)
    assert divisor.item() == 2 * count
    assert whole.item() == 3.0 / count


def test_a_sum_is_not_divided() -> None:
    part = LossPart(torch.tensor(3.0), None, True, torch.float32)
    whole, divisor = whole_of(sums_of([part, part], torch.device("cpu")))
    assert (float(whole), float(divisor)) == (6.0, 1.0)


def test_a_detached_part_has_no_graph() -> None:
    value = torch.ones((), requires_grad=True)
    part = LossPart(2 * value, 3 * value, True, torch.float32).detach()
    assert isinstance(part.count, torch.Tensor)
    assert (part.value.grad_fn, part.count.grad_fn) == (None, None)
