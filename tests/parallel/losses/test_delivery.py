"""Gradients that were computed before the caller's backward pass, as a node of its graph."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from anyrig.errors import SpreadError
from anyrig.parallel.losses.delivery import Delivery, deliver, scale


class Kept(Delivery):
    """A sum, with the gradients of its terms kept."""

    def __init__(self, value: Tensor, gradients: Sequence[Tensor]) -> None:
        self.value, self.gradients = value, gradients

    def forward(self) -> tuple[list[Tensor], list[bool]]:
        return [self.value, torch.tensor(7)], [True, False]

    def backward(self, upstream: Sequence[Tensor | None], keeps: bool) -> Sequence[Tensor | None]:
        factor = upstream[0]
        assert factor is not None
        return scale(self.gradients, factor, in_place=not keeps)


def test_a_backward_pass_gets_what_was_kept() -> None:
    learning = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    kept = [torch.full((2,), 2.0), torch.full((3,), 5.0)]
    value, fact = deliver(Kept(torch.tensor(4.0), kept), learning)
    assert not fact.requires_grad
    (3 * value).backward(retain_graph=True)
    grads = [one.grad for one in learning if one.grad is not None]
    assert [grad.tolist() for grad in grads] == [[6.0] * 2, [15.0] * 3]
    value.backward()
    assert [grad.tolist() for grad in grads] == [[8.0] * 2, [20.0] * 3]
    with pytest.raises(RuntimeError, match=r"earlier backward pass\. Call the model again"):
        value.backward()
    again = deliver(Kept(torch.tensor(4.0), kept), learning)[0]
    with pytest.raises(SpreadError, match="create_graph=True is impossible"):
        again.backward(create_graph=True)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("factor", [3.0, torch.tensor(3.0), torch.tensor(3.0, dtype=torch.float64)])
def test_every_kind_of_gradient_is_scaled_in_its_dtype(
    factor: Tensor | float, in_place: bool
) -> None:
    sparse = torch.eye(2).to_sparse()
    given = [torch.ones(2, dtype=torch.bfloat16), None, sparse, torch.ones(2, dtype=torch.float64)]
    half, nothing, scattered, double = scale(given, factor, in_place)
    assert half is not None
    assert scattered is not None
    assert double is not None
    assert nothing is None
    assert (half.dtype, half.tolist()) == (torch.bfloat16, [3.0, 3.0])
    assert (double.dtype, double.tolist()) == (torch.float64, [3.0, 3.0])
    assert scattered.to_dense().tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert (half is given[0]) == in_place
