"""Bringing what changed on the lead to the other devices, while they already compute.

::

    lead  ──b0──b1──b2──▶ cuda:1 ──b0──b1──▶ cuda:2 ──b0──▶ cuda:3

Each device passes a bucket on when it has it, so that the lead sends every byte once, whatever
their number, and all links work at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...transfer.streams import using
from .buckets import Bucket
from .side_streams import copy_across, side_streams


class Broadcast:
    """Keeps the buckets of the other devices equal to the lead's.

    Args:
        lead: the device of the caller's module.
        others: the devices to keep equal, in the order of the chain.
    """

    def __init__(self, lead: torch.device, others: Sequence[torch.device]) -> None:
        self._lead = lead
        self._others = tuple(others)
        # The streams on which each device may still be reading what it has.
        self._readers: list[torch.Stream | None] = [None] * len(others)
        # Recorded when the lead's values have been read.
        self._gone: torch.Event | None = None

    def send(self, buckets: Sequence[Bucket], to: Sequence[int], *, apart: bool = False) -> None:
        """Queue the copies of what devices at the positions `to` lack.

        `Bucket.ready` of a device is the event after which it may be read there.

        Args:
            buckets: all that may have changed.
            to: positions among the other devices.
            apart: whether what is sent is copied on the lead first, so that `hold_writes` is short.
        """
        wanted = [
            (bucket, [device for device in to if bucket.held[device] != bucket.stamp])
            for bucket in buckets
        ]
        if any(lacking for _, lacking in wanted):
            leaving = side_streams(self._lead).leaving
            leaving.wait_stream(torch.accelerator.current_stream(self._lead))
            for device in to:
                self._wait_for_readers(device)
            # All packing comes before all copying, else a copy would wait for the multiprocessors.
            with using(leaving):
                packed = [
                    bucket.pieces(apart=apart) if lacking else [] for bucket, lacking in wanted
                ]
            if apart:
                self._gone = leaving.record_event()
            for (bucket, lacking), pieces in zip(wanted, packed, strict=True):
                if lacking:
                    self._send(bucket, pieces, lacking)
            if not apart:
                self._gone = leaving.record_event()
        for device in to:
            self._readers[device] = torch.accelerator.current_stream(self._others[device])

    def hold_writes(self) -> None:
        """Have the lead's current stream, which may write them, wait until the values are gone."""
        if self._gone is not None:
            torch.accelerator.current_stream(self._lead).wait_event(self._gone)
            self._gone = None

    def _wait_for_readers(self, device: int) -> None:
        arriving, leaving = side_streams(self._others[device])
        arriving.wait_stream(leaving)
        arriving.wait_stream(torch.accelerator.current_stream(self._others[device]))
        reader = self._readers[device]
        if reader is not None:
            arriving.wait_stream(reader)

    def _send(self, bucket: Bucket, pieces: Sequence[torch.Tensor], lacking: Sequence[int]) -> None:
        leaving = side_streams(self._lead).leaving
        for device in lacking:
            streams = side_streams(self._others[device])
            with using(streams.arriving):
                flat = bucket.flat(device)
            places = bucket.pieces_of(flat) if device == lacking[0] else [flat]
            copy_across(
                zip(places, pieces, strict=True), arriving=streams.arriving, leaving=leaving
            )
            bucket.ready[device].record(streams.arriving)
            streams.leaving.wait_event(bucket.ready[device])
            flat.record_stream(streams.leaving)
            copies = bucket.copies(device)
            torch.autograd.graph.increment_version(
                [
                    copies[slot.position]
                    for slot in bucket.slots
                    if slot.changed > bucket.held[device]
                ]
            )
            bucket.held[device] = bucket.stamp
            pieces, leaving = [flat], streams.leaving
