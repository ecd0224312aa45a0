"""The whole tensors of a run from the pieces of its ranks."""

from __future__ import annotations

import torch

from anyrig.verification.joining import join
from anyrig.verification.piece import Piece, piece_of
from anyrig.verification.precision import dtypes_of

WHOLE = torch.arange(12.0).view(4, 3)


def piece(values: torch.Tensor, start: tuple[int, ...] = (0, 0), **more: object) -> Piece:
    return Piece(values, (4, 3), start, **more)


def test_parts_are_pasted_to_their_places() -> None:
    joined = join({0: piece(WHOLE[:3]), 1: piece(WHOLE[3:], (3, 0))}, WHOLE)
    assert joined is not None
    assert joined.whole.equal(WHOLE.double())
    assert joined.is_divided


def test_of_parts_that_two_ranks_have_the_first_ranks_counts() -> None:
    parts = {0: piece(WHOLE[:2]), 1: piece(-WHOLE[:2]), 2: piece(WHOLE[2:], (2, 0))}
    joined = join(parts, WHOLE)
    assert joined is not None
    assert joined.whole.equal(WHOLE.double())


def test_parts_of_a_flat_tensor() -> None:
    flat = WHOLE.view(-1)
    parts = {0: piece(flat[:5], flat_start=0), 1: piece(flat[5:], flat_start=5)}
    joined = join(parts, WHOLE)
    assert joined is not None
    assert joined.whole.equal(WHOLE.double())


def test_partial_sums_are_added_up() -> None:
    joined = join({rank: piece(WHOLE, is_partial=True) for rank in range(3)}, WHOLE)
    assert joined is not None
    assert joined.whole.equal(3 * WHOLE.double())


def test_plain_parts_are_put_together_in_the_order_of_ranks() -> None:
    parts = {rank: Piece(WHOLE[:, rank : rank + 1], (4, 1), (0, 0)) for rank in range(3)}
    joined = join(parts, WHOLE)
    assert joined is not None
    assert joined.whole.equal(WHOLE)
    assert join(parts, torch.zeros(5, 3)) is None


def test_copies_are_kept_by_rank() -> None:
    joined = join({0: piece(WHOLE), 2: piece(2 * WHOLE)}, WHOLE)
    assert joined is not None
    assert [*joined.copies] == [0, 2]
    assert joined.whole.equal(WHOLE)


def test_a_parameter_without_memory_has_no_piece() -> None:
    assert piece_of(torch.empty(2, device="meta")) is None
    sparse = torch.eye(2).to_sparse().requires_grad_()
    found = piece_of(sparse)
    assert found is not None
    assert found.values.equal(torch.eye(2))


def test_the_types_of_a_loss_include_those_within() -> None:
    weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert dtypes_of(weight.sum()) == {"float64"}
    assert dtypes_of(weight.to(torch.bfloat16).double().sum()) == {"float64", "bfloat16"}
