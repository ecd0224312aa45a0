"""The whole tensors of a run, from the pieces of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .piece import Piece


@dataclass(frozen=True)
class Joined:
    """A tensor of a run.

    Attributes:
        whole: the tensor; if the ranks' copies differ, that of the first rank.
        copies: the tensor on each rank that has all of it, by rank; else empty.
        pieces: what each rank has, by rank.
    """

    whole: Tensor
    copies: Mapping[int, Tensor]
    pieces: Mapping[int, Piece]

    @property
    def is_divided(self) -> bool:
        """Whether ranks hold different parts of the tensor."""
        return not self.copies


def join(pieces: Mapping[int, Piece], expected: Tensor | None) -> Joined | None:
    """Return a tensor from its pieces by rank; None if they do not make up one.

    Args:
        pieces: what each rank has.
        expected: the tensor on one device. If all ranks have plain tensors that are smaller in one
            dimension, they are put together along it, in the order of ranks.
    """
    some = next(iter(pieces.values()))
    shape = tuple(some.shape if expected is None else expected.shape)
    if all(piece.is_whole and piece.shape == shape for piece in pieces.values()):
        copies = {rank: piece.values.view(shape) for rank, piece in pieces.items()}
        return Joined(next(iter(copies.values())), copies, pieces)
    if all(piece.shape == shape for piece in pieces.values()):
        whole = torch.full(shape, torch.nan, dtype=torch.float64)
        if all(piece.is_partial for piece in pieces.values()):
            whole.zero_()
            for piece in pieces.values():
                part = torch.zeros_like(whole)
                piece.paste_into(part)
                whole += part
        else:
            for piece in reversed([*pieces.values()]):
                piece.paste_into(whole)
        return Joined(whole, {}, pieces)
    dimension = _divided_dimension([piece.shape for piece in pieces.values()], shape)
    if dimension is None:
        return None
    return Joined(torch.cat([one.values for one in pieces.values()], dimension), {}, pieces)


def _divided_dimension(parts: Sequence[tuple[int, ...]], whole: tuple[int, ...]) -> int | None:
    """Return the dimension along which parts of these shapes make up the whole."""
    for dimension in range(len(whole)):
        others = {(*part[:dimension], *part[dimension + 1 :]) for part in parts}
        if others != {(*whole[:dimension], *whole[dimension + 1 :])}:
            continue
        if sum(part[dimension] for part in parts) == whole[dimension]:
            return dimension
    return None
