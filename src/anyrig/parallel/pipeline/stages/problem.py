"""Blocks, devices and links as prefix sums, which give the costs of ranges of blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from ..costs import BlockCost, InFlight, StageDevice, StageLink

Links = Sequence[Sequence[StageLink]]
# Sums of floats in a different order differ in the last digits.
_ROUNDING = 1 + 1e-12


class Problem:
    """Blocks, devices and links, with prefix sums.

    Args:
        blocks: the blocks, in order.
        devices: the devices, by index.
        links: ``links[a][b]`` from device a of one stage to device b of the next.
        in_flight: how many micro-batches a stage has in flight.
        given_order: whether stages must be in the order of the devices.
    """

    def __init__(
        self,
        blocks: Sequence[BlockCost],
        devices: Sequence[StageDevice],
        links: Links,
        in_flight: InFlight,
        given_order: bool,
    ) -> None:
        self.blocks, self.devices, self.links = blocks, devices, links
        self.in_flight, self.given_order = in_flight, given_order
        self.seconds = [
            [0.0, *accumulate(device.block_seconds or [b.seconds / device.speed for b in blocks])]
            for device in devices
        ]
        self.memory = [float("inf") if d.memory_bytes is None else d.memory_bytes for d in devices]
        self._bytes: dict[int, list[int]] = {}

    def compute_seconds(self, device: int, start: int, end: int) -> float:
        """Return the time of blocks ``start:end`` on a device."""
        sums = self.seconds[device]
        return sums[end] - sums[start]

    def stage_bytes(self, start: int, end: int, held: int) -> int:
        """Return the memory of blocks ``start:end`` with `held` micro-batches in flight."""
        sums = self.byte_sums(held)
        return sums[end] - sums[start]

    def byte_sums(self, held: int) -> list[int]:
        """Return prefix sums of the blocks' bytes with `held` micro-batches in flight."""
        found = self._bytes.get(held)
        if found is None:
            each = (b.fixed_bytes + held * b.activation_bytes for b in self.blocks)
            found = self._bytes[held] = [0, *accumulate(each)]
        return found

    def transfer_seconds(self, before: int, after: int, cut: int) -> float:
        """Return the time of a transfer between two devices over the cut at this block."""
        return self.links[before][after].seconds(self.blocks[cut - 1].output_bytes)

    def earliest_start(self, device: int, end: int, held: int, seconds: float) -> int:
        """Return the first block of the longest stage that ends at `end` and meets both limits."""
        sums = self.seconds[device]
        start = bisect_left(sums, sums[end] - seconds * _ROUNDING, 0, end)
        if self.memory[device] < float("inf"):
            total = self.byte_sums(held)
            start = max(start, bisect_left(total, total[end] - self.memory[device], 0, end))
        return start

    @cached_property
    def slowest_transfer(self) -> float:
        """The longest time of any transfer over any link."""
        largest = max((b.output_bytes for b in self.blocks[:-1]), default=0)
        count = range(len(self.devices))
        times = (self.links[a][b].seconds(largest) for a in count for b in count if a != b)
        return max(times, default=0.0)

    @cached_property
    def kind_of(self) -> list[int]:
        """For each device, the first device that equals it; the device itself if links differ."""
        pairs = {each for a, row in enumerate(self.links) for b, each in enumerate(row) if a != b}
        indices = range(len(self.devices))
        if len(pairs) > 1:
            return list(indices)
        seen: dict[tuple[float, tuple[float, ...]], int] = {}
        return [seen.setdefault((self.memory[d], tuple(self.seconds[d])), d) for d in indices]

    @cached_property
    def kinds(self) -> Counter[int]:
        """How many devices there are of each kind."""
        return Counter(self.kind_of)

    @cached_property
    def held_by_stages_after(self) -> list[int] | None:
        """Micro-batches in flight, by the number of later stages; None if they depend on more."""
        most = len(self.devices)
        found = [self.in_flight(most - 1 - after, most) for after in range(most)]
        for stages in range(1, most):
            for stage in range(stages):
                if self.in_flight(stage, stages) != found[stages - 1 - stage]:
                    return None
        return found
