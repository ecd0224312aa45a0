"""Packed sequences, split and joined by sequences.

::

    four sequences a b c d of lengths 4 2 3 1, packed:  longest first, time step by time step

    sorted_indices  a c b d    data  a0 c0 b0 d0 │ a1 c1 b1 │ a2 c2 │ a3    batch_sizes 4 3 2 1
                                 ├─ first two, a b:   a0 b0 │ a1 b1 │ a2 │ a3           2 2 1 1
                                 └─ last two, c d:    c0 d0 │ c1 │ c2                   2 1 1

The rows are taken in the order in which the sequences were packed, not in the sorted order, so
that they meet the targets that were split beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .cut import cut, join


def cut_packed(
    packed: PackedSequence, counts: Sequence[int], devices: Sequence[torch.device]
) -> list[PackedSequence]:
    """Return ``counts[i]`` sequences of `packed` on ``devices[i]``, for each i, in order.

    `batch_sizes` stays on the CPU, as `torch.nn.utils.rnn` has it. To know the lengths, the sorting
    order is read from the device if it lies there, which waits for it.
    """
    lengths = _sorted_lengths(packed.batch_sizes)
    place = _host(packed.unsorted_indices, len(lengths))  # of each sequence among the sorted ones
    layouts = []
    for start, stop in pairwise(accumulate(counts, initial=0)):
        chosen, order = torch.sort(place[start:stop])
        layouts.append((chosen, order, _batch_sizes(lengths[chosen])))
    starts = _step_starts(packed.batch_sizes)
    steps = torch.cat([_elements(starts, chosen, sizes) for chosen, _, sizes in layouts])
    # One gathering puts the parts side by side; the cut then is one of contiguous pieces.
    data = packed.data.index_select(0, steps.to(packed.data.device))
    pieces = cut(data, [int(sizes.sum()) for *_, sizes in layouts], devices)
    keeps_order = packed.sorted_indices is None
    return [
        _pack(type(packed), piece, sizes, None if keeps_order else order)
        for piece, (_, order, sizes) in zip(pieces, layouts, strict=True)
    ]


def join_packed(parts: Sequence[PackedSequence], device: torch.device) -> PackedSequence:
    """Return the sequences of all parts, in order, packed on `device`.

    Longest first, equal lengths in their order, as `torch.nn.utils.rnn.pack_padded_sequence` does
    it: the data are laid out as if all had been packed together.
    """
    sorted_lengths = [_sorted_lengths(part.batch_sizes) for part in parts]
    places = [
        _host(part.unsorted_indices, len(lengths))
        for part, lengths in zip(parts, sorted_lengths, strict=True)
    ]
    lengths = torch.cat(
        [of_part[place] for of_part, place in zip(sorted_lengths, places, strict=True)]
    )
    order = torch.argsort(lengths, descending=True, stable=True)
    batch_sizes = _batch_sizes(lengths[order])
    # Where the steps of each sequence begin in the joined data, for each step: one row a sequence.
    offsets = accumulate((int(part.batch_sizes.sum()) for part in parts), initial=0)
    positions = torch.cat(
        [
            _positions(part.batch_sizes, place, len(batch_sizes)) + offset
            for part, place, offset in zip(parts, places, offsets, strict=False)
        ]
    )[order]
    steps = positions.t()[_is_running(batch_sizes, len(order))]
    data = join([part.data for part in parts], device)
    keeps_order = all(part.sorted_indices is None for part in parts) and bool(
        (order == torch.arange(len(order), device="cpu")).all()
    )
    if len(parts) > 1:
        data = data.index_select(0, steps.to(device))
    return _pack(type(parts[0]), data, batch_sizes, None if keeps_order else order)


def _pack(
    cls: type[PackedSequence], data: Tensor, batch_sizes: Tensor, order: Tensor | None
) -> PackedSequence:
    if order is None:
        return cls(data, batch_sizes)
    return cls(
        data, batch_sizes, order.to(data.device), torch.argsort(order, stable=True).to(data.device)
    )


def _host(unsorted_indices: Tensor | None, count: int) -> Tensor:
    return torch.arange(count, device="cpu") if unsorted_indices is None else unsorted_indices.cpu()


def _sorted_lengths(batch_sizes: Tensor) -> Tensor:
    count = int(batch_sizes[0]) if len(batch_sizes) else 0
    return _is_running(batch_sizes, count).sum(0)


def _batch_sizes(sorted_lengths: Tensor) -> Tensor:
    steps = int(sorted_lengths[0]) if len(sorted_lengths) else 0
    return (sorted_lengths[None, :] > torch.arange(steps, device="cpu")[:, None]).sum(1)


def _is_running(batch_sizes: Tensor, count: int) -> Tensor:
    """Return a table of steps by sorted sequences: whether the sequence has that step."""
    return torch.arange(count, device="cpu")[None, :] < batch_sizes[:, None]


def _step_starts(batch_sizes: Tensor) -> Tensor:
    return batch_sizes.cumsum(0) - batch_sizes


def _elements(step_starts: Tensor, chosen: Tensor, batch_sizes: Tensor) -> Tensor:
    """Return where the elements of the chosen sorted sequences lie, in the order of packing."""
    positions = step_starts[: len(batch_sizes), None] + chosen[None, :]
    return positions[_is_running(batch_sizes, len(chosen))]


def _positions(batch_sizes: Tensor, place: Tensor, steps: int) -> Tensor:
    """Return a table of sequences by steps: where the element lies, anything past the end."""
    starts = torch.zeros(steps, dtype=torch.int64, device="cpu")
    starts[: len(batch_sizes)] = _step_starts(batch_sizes)
    return starts[None, :] + place[:, None]
