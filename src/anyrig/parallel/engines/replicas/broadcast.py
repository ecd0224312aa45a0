"""Copying what changed on the lead to the other devices, overlapping with computation.

Each device passes a bucket on to the next, so the lead sends every byte once, and all links work
concurrently. A large tensor is passed on in several cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import torch

from ....transfer.streams import using
from .buckets import Bucket, in_cuts


class SideStreams(NamedTuple):
    """Two streams of one device, one for each direction of its links."""

    arriving: torch.Stream
    leaving: torch.Stream


@cache
def side_streams(device: torch.device) -> SideStreams:
    """Return the streams for copies to and from `device`, shared by all models."""
    return SideStreams(torch.Stream(device), torch.Stream(device))


def copy_across(
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], source: torch.device, target: torch.device
) -> None:
    """Copy the second tensor of each pair to the first, overlapping with computation.

    PyTorch copies on the source's current stream and synchronizes with the target's, so both
    streams are set.
    """
    with using(side_streams(source).leaving, side_streams(target).arriving):
        for place, value in pairs:
            place.copy_(value, non_blocking=True)


class Broadcast:
    """Keeps the buckets of the other devices equal to the lead's; `others` is the chain."""

    def __init__(self, lead: torch.device, others: Sequence[torch.device]) -> None:
        self._lead = lead
        self._others = tuple(others)
        # The stream on which each device may still be reading its copies.
        self._readers: list[torch.Stream | None] = [None] * len(others)
        self._gone: torch.Event | None = None  # recorded after the lead's parameters were read

    def send(
        self, buffers: Sequence[Bucket], parameters: Sequence[Bucket], to: Sequence[int]
    ) -> None:
        """Queue copies to the devices at positions `to` where they differ from the lead.

        Buffers go first: the first normalization layer reads them. The lead's current stream waits
        until buffers are packed and may then write them; parameters only after `hold_writes`.
        """
        first, rest = _outdated(buffers, to), _outdated(parameters, to)
        if first or rest:
            leaving = side_streams(self._lead).leaving
            writer = torch.accelerator.current_stream(self._lead)
            leaving.wait_stream(writer)
            for device in to:
                arriving, passing_on = side_streams(self._others[device])
                arriving.wait_stream(passing_on)
                if (reader := self._readers[device]) is not None:
                    arriving.wait_stream(reader)
            # Pack everything before copying: a later pack would wait for multiprocessors.
            with using(leaving):
                packed = [bucket.pieces(copied=True) for bucket, _ in first]
                if first:
                    writer.wait_event(leaving.record_event())
                packed += [bucket.pieces() for bucket, _ in rest]
            for (bucket, outdated), pieces in zip([*first, *rest], packed, strict=True):
                self._send(bucket, pieces, outdated)
            if rest:
                self._gone = leaving.record_event()
        for device in to:
            self._readers[device] = torch.accelerator.current_stream(self._others[device])

    def hold_writes(self) -> None:
        """Make the lead's current stream wait until the parameters have been read."""
        if self._gone is not None:
            torch.accelerator.current_stream(self._lead).wait_event(self._gone)
            self._gone = None

    def _send(
        self, bucket: Bucket, pieces: Sequence[torch.Tensor], outdated: Sequence[int]
    ) -> None:
        hops = len(outdated)
        # Several pieces together are no larger than one cut.
        passes = [[cut] for cut in in_cuts(pieces[0], hops)] if len(pieces) == 1 else [pieces]
        for number, source in enumerate(passes):
            before = self._lead
            for device in outdated:
                here = self._others[device]
                arriving, leaving = side_streams(here)
                with using(arriving):
                    flat = bucket.flat(device)
                whole = [flat] if len(passes) == 1 else [in_cuts(flat, hops)[number]]
                places = bucket.pieces_of(flat) if len(source) > 1 else whole
                copy_across(zip(places, source, strict=True), before, here)
                bucket.ready[device].record(arriving)
                leaving.wait_event(bucket.ready[device])
                source, before = whole, here
        for device in outdated:
            bucket.flat(device).record_stream(side_streams(self._others[device]).leaving)
            bucket.note_arrival(device)


def _outdated(buckets: Sequence[Bucket], to: Sequence[int]) -> list[tuple[Bucket, list[int]]]:
    """Return the buckets that differ from the lead's, with the positions where they do."""
    outdated = [(bucket, [device for device in to if bucket.differs(device)]) for bucket in buckets]
    return [(bucket, devices) for bucket, devices in outdated if devices]
