"""Finding changes of values that PyTorch does not note: those made through ``parameter.data``.

A version counter tells of all other changes for nothing. Only a forward before which no parameter
has a new version, and no backward ran, asks here: training never does; evaluation loops do, and
wait for what the lead still computes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...errors import ValueNeededError
from ...transfer.streams import using
from .buckets import Bucket
from .side_streams import side_streams

_COLUMNS = 1024
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def find_unnoticed(
    buckets: Sequence[Bucket], lead: torch.device, others: Sequence[torch.device]
) -> list[Bucket]:
    """Return those of `buckets` that on the lead differ from what the other devices were sent.

    Sums of the bits are compared, so that few numbers travel. The host waits for them.
    """
    sent: dict[int, list[Bucket]] = {}
    for bucket in buckets:
        holder = next((i for i, stamp in enumerate(bucket.held) if stamp == bucket.stamp), None)
        if holder is not None:
            sent.setdefault(holder, []).append(bucket)
    changed = []
    for holder, held in sent.items():
        here = _sums([(bucket, None) for bucket in held], lead)
        there = _sums([(bucket, holder) for bucket in held], others[holder])
        try:
            same = [torch.equal(*pair) for pair in zip(here.cpu(), there.cpu(), strict=True)]
        except ValueNeededError:  # a rehearsal without values cannot know
            same = [False] * len(held)
        changed += [bucket for bucket, equal in zip(held, same, strict=True) if not equal]
    return changed


def _sums(places: Sequence[tuple[Bucket, int | None]], device: torch.device) -> torch.Tensor:
    stream = side_streams(device).leaving
    stream.wait_stream(torch.accelerator.current_stream(device))
    stream.wait_stream(side_streams(device).arriving)
    with using(stream):
        rows = [
            bit_sums(bucket.pack() if holder is None else bucket.flat(holder))
            for bucket, holder in places
        ]
        return torch.stack(rows)


def bit_sums(flat: torch.Tensor) -> torch.Tensor:
    """Return sums of the bits of a tensor of one dimension, each over every 1024th number.

    Of up to 1024 numbers every change shows; of more, one that leaves all sums the same does not.
    """
    bits = flat.view(_INTEGERS.get(flat.element_size(), torch.int64))
    whole = bits.numel() // _COLUMNS * _COLUMNS
    sums = bits[:whole].view(-1, _COLUMNS).sum(0, dtype=torch.int64)
    sums[: bits.numel() - whole] += bits[whole:] * _TAIL
    return sums


# The last, incomplete row counts otherwise than the others: exchanging both would not show else.
_TAIL = 3
