"""Blocks, devices and their link as prefix sums, which give the costs of ranges of blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from .costs import BlockCost, InFlight, StageDevice, StageLink

# Sums of floats in a different order differ in the last digits.
_ROUNDING = 1 + 1e-12


class Problem:
    """What `partition` divides, with prefix sums.

    Args:
        blocks: the blocks, in order.
        devices: the devices, in the order of their stages.
        link: between any two devices.
        in_flight: how many micro-batches a stage has in flight.
    """

    def __init__(
        self,
        blocks: Sequence[BlockCost],
        devices: Sequence[StageDevice],
        link: StageLink,
        in_flight: InFlight,
    ) -> None:
        self.blocks, self.devices, self.in_flight = blocks, devices, in_flight
        self.seconds = [
            [0.0, *accumulate(device.block_seconds or [b.seconds / device.speed for b in blocks])]
            for device in devices
        ]
        self.memory = [float("inf") if d.memory_bytes is None else d.memory_bytes for d in devices]
        # The transfer at the cut before each block; there is no cut before the first.
        self.transfer_seconds = [0.0, *(link.seconds(block.output_bytes) for block in blocks[:-1])]
        self._bytes: dict[int, list[int]] = {}

    def compute_seconds(self, device: int, start: int, end: int) -> float:
        """Return the time of blocks ``start:end`` on a device."""
        sums = self.seconds[device]
        return sums[end] - sums[start]

    def stage_bytes(self, start: int, end: int, held: int) -> int:
        """Return the memory of blocks ``start:end`` with `held` micro-batches in flight."""
        sums = self._byte_sums(held)
        return sums[end] - sums[start]

    def _byte_sums(self, held: int) -> list[int]:
        found = self._bytes.get(held)
        if found is None:
            each = (b.fixed_bytes + held * b.activation_bytes for b in self.blocks)
            found = self._bytes[held] = [0, *accumulate(each)]
        return found

    def earliest_start(self, device: int, end: int, later: int, seconds: float) -> int:
        """Return the first block of the longest stage that ends at `end` and meets the limits.

        These are the device's memory, with `later` stages after this one, and `seconds` for the
        stage and for the transfer to it. `end` itself is returned if no stage does.
        """
        sums = self.seconds[device]
        start = bisect_left(sums, sums[end] - seconds * _ROUNDING, 0, end)
        if self.memory[device] < float("inf"):
            total = self._byte_sums(self.in_flight(later))
            start = max(start, bisect_left(total, total[end] - self.memory[device], 0, end))
        while start < end and self.transfer_seconds[start] > seconds:
            start += 1
        return start
