"""Samples of different lengths: packed sequences and nested tensors, divided and joined by samples.

::

    four sequences a b c d of lengths 4 2 3 1, packed:  longest first, time step by time step

    sorted_indices  a c b d    data  a0 c0 b0 d0 │ a1 c1 b1 │ a2 c2 │ a3    batch_sizes 4 3 2 1
                                 ├─ first two, a b:   a0 b0 │ a1 b1 │ a2 │ a3           2 2 1 1
                                 └─ last two, c d:    c0 d0 │ c1 │ c2                   2 1 1

Sequences are taken in the order in which they were packed, not in the sorted order, so that they
match the targets of the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...transfer.beside import copy_in_order
from .cut import cut, join


def count_sequences(packed: PackedSequence) -> int:
    """Return the number of sequences."""
    return int(packed.batch_sizes[0]) if len(packed.batch_sizes) else 0


def cut_packed(
    packed: PackedSequence, counts: Sequence[int], devices: Sequence[torch.device]
) -> list[PackedSequence]:
    """Return ``counts[i]`` sequences on ``devices[i]``; the host waits for the sorting order."""
    steps, sequences, order = _read_layout(packed)
    spans = list(pairwise(accumulate(counts, initial=0)))
    chosen = [_find_between(sequences, *span) for span in spans]
    # One index_select makes each part contiguous, so that `cut` copies contiguous pieces.
    data = packed.data.index_select(0, torch.cat(chosen).to(packed.data.device))
    pieces = cut(data, [len(elements) for elements in chosen], devices)
    sorted_parts = [order[_find_between(order, *span)] - span[0] for span in spans]
    return [
        _pack(packed, piece, steps[elements], None if packed.sorted_indices is None else part)
        for piece, elements, part in zip(pieces, chosen, sorted_parts, strict=True)
    ]


def join_packed(parts: Sequence[PackedSequence], device: torch.device) -> PackedSequence:
    """Return the sequences of all parts, in order, packed on `device` as `pack_sequence` does."""
    layouts = [_read_layout(part) for part in parts]
    offsets = accumulate((len(order) for *_, order in layouts), initial=0)
    steps = torch.cat([steps for steps, *_ in layouts])
    sequences = torch.cat(
        [sequences + offset for (_, sequences, _), offset in zip(layouts, offsets, strict=False)]
    )
    order = torch.argsort(torch.bincount(sequences), descending=True, stable=True)
    places = torch.argsort(order)  # of each sequence among the sorted ones
    elements = torch.argsort(steps * len(order) + places[sequences])
    data = join([part.data for part in parts], device).index_select(0, elements.to(device))
    keeps_order = all(part.sorted_indices is None for part in parts) and torch.equal(
        order, order.sort()[0]
    )
    return _pack(parts[0], data, steps, None if keeps_order else order)


def _read_layout(packed: PackedSequence) -> tuple[Tensor, Tensor, Tensor]:
    """Return the time step and the sequence of each element, and the sequences in sorted order."""
    order = torch.arange(count_sequences(packed), device="cpu")
    steps, places = (order < packed.batch_sizes[:, None]).nonzero(as_tuple=True)
    if packed.sorted_indices is not None:
        order = packed.sorted_indices.cpu()
    return steps, order[places], order


def _find_between(numbers: Tensor, start: int, stop: int) -> Tensor:
    return ((numbers >= start) & (numbers < stop)).nonzero()[:, 0]


def _pack(
    like: PackedSequence, data: Tensor, steps: Tensor, order: Tensor | None
) -> PackedSequence:
    indices = () if order is None else (order.to(data.device), torch.argsort(order).to(data.device))
    return type(like)(data, torch.bincount(steps), *indices)


def cut_nested(
    nested: Tensor, counts: Sequence[int], devices: Sequence[torch.device]
) -> list[Tensor]:
    """Return ``counts[i]`` parts of `nested` on ``devices[i]``, for each i, in order."""
    parts = nested.unbind()
    spans = pairwise(accumulate(counts, initial=0))
    cut = [
        _nest(parts[start:stop], nested.layout) if stop > start else _make_empty(nested)
        for start, stop in spans
    ]
    return list(map(copy_in_order, cut, devices))


def join_nested(nesteds: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return a nested tensor on `device` with the parts of all nested tensors, in order."""
    parts = [copy_in_order(part, device) for nested in nesteds for part in nested.unbind()]
    return _nest(parts, nesteds[0].layout) if parts else nesteds[0].to(device)


def _nest(parts: Sequence[Tensor], layout: torch.layout) -> Tensor:
    return torch.nested.as_nested_tensor(list(parts), layout=layout)


def _make_empty(like: Tensor) -> Tensor:
    if like.layout is not torch.jagged:
        return torch.nested.as_nested_tensor([], dtype=like.dtype, device=like.device)
    offsets: Tensor = like.offsets()  # type: ignore[attr-defined]  # jagged tensors only
    return torch.nested.nested_tensor_from_jagged(like.values()[:0], offsets[:1])
