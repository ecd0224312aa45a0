"""Finding changes of values that PyTorch does not note: those made through ``parameter.data``.

A version counter tells of all other changes for nothing. Only a forward before which no parameter
has a new version, and no backward ran, comes here: training never does, evaluation loops do. What
is small is simply sent again. What is large is asked about, and the host waits until the lead can
answer, which is short beside a forward of so many parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from ...errors import ValueNeededError
from ...transfer.streams import using
from .buckets import Bucket
from .side_streams import side_streams

# What travels beside the computation in a millisecond or two by PCIe.
SEND_AGAIN_BYTES = 32 * 2**20

_COLUMNS = 1024
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def find_unnoticed(
    buckets: Sequence[Bucket], lead: torch.device, others: Sequence[torch.device]
) -> list[Bucket]:
    """Return those of `buckets` that on the lead may differ from what the other devices were sent.

    All, if they are small. Else sums of the bits are compared, so that few numbers travel; the host
    waits for those of the lead.
    """
    sent = [bucket for bucket in buckets if bucket.stamp in bucket.held]
    if sum(bucket.nbytes for bucket in sent) <= SEND_AGAIN_BYTES:
        return sent
    try:
        for holder, device in enumerate(others):
            _remember_sums([b for b in sent if b.held.index(b.stamp) == holder], holder, device)
        here = _sums([bucket.pieces for bucket in sent], lead)
    except ValueNeededError:  # a rehearsal without values cannot know
        return sent
    return [
        bucket
        for bucket, sums in zip(sent, here, strict=True)
        if bucket.sent_sums is None or not torch.equal(sums, bucket.sent_sums[1])
    ]


def _remember_sums(buckets: Sequence[Bucket], holder: int, device: torch.device) -> None:
    """Note the sums of what a device has been sent, once each time."""
    asked = [b for b in buckets if b.sent_sums is None or b.sent_sums[0] != b.stamp]
    found = _sums([partial(b.pieces_of, b.flat(holder)) for b in asked], device)
    for bucket, sums in zip(asked, found, strict=True):
        bucket.sent_sums = bucket.stamp, sums


def _sums(
    buckets: Sequence[Callable[[], list[torch.Tensor]]], device: torch.device
) -> Iterable[torch.Tensor]:
    """Return on the host, for each bucket, the sums of its pieces."""
    if not buckets:
        return []
    stream = side_streams(device).leaving
    stream.wait_stream(torch.accelerator.current_stream(device))
    stream.wait_stream(side_streams(device).arriving)
    with using(stream):
        pieces = [make_pieces() for make_pieces in buckets]
        # To the host within the stream: it does not wait for any other.
        sums = torch.stack([bit_sums(piece) for of_one in pieces for piece in of_one]).cpu()
    return torch.split(sums, [len(of_one) for of_one in pieces])


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
