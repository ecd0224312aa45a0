"""How much of a device was free when it refused a request, and in which pieces."""

from __future__ import annotations

from dataclasses import dataclass

from ..units import format_bytes

# Of what PyTorch holds. A training step whose batch is too large leaves 3 to 6 % in pieces.
# Expandable segments can use these pieces, which helps only if the batch is barely too large.
FRAGMENTED_SHARE = 0.1


@dataclass(frozen=True)
class FreeMemory:
    """The free memory of a device when it refused a request.

    Attributes:
        requested_bytes: the size of the request.
        cached_bytes: what is free in the blocks that PyTorch's caching allocator keeps.
        largest_bytes: the largest of these free blocks; None if unknown.
        unreserved_bytes: what is free outside the allocator.
        reserved_bytes: what the allocator holds.
    """

    requested_bytes: int
    cached_bytes: int
    largest_bytes: int | None
    unreserved_bytes: int
    reserved_bytes: int

    @property
    def share(self) -> float:
        """The free part of what the allocator holds."""
        return self.cached_bytes / self.reserved_bytes if self.reserved_bytes else 0.0

    @property
    def would_suffice(self) -> bool:
        """Whether the free blocks would have held the request, had they been one block."""
        return self.cached_bytes >= self.requested_bytes

    def describe_fragmentation(self) -> str:
        """Return the reason, in one sentence, if the free blocks are why the request failed."""
        return (
            f"fragmentation: {format_bytes(self.cached_bytes)} are free in cached blocks, and the "
            f"request has {format_bytes(self.requested_bytes)}, but {self._largest()}"
        )

    def describe(self) -> str:
        """Return in one sentence whether the device was full or fragmented."""
        cached = f"{format_bytes(self.cached_bytes)} in cached blocks"
        if not self.would_suffice:
            free = f"{cached}, and {format_bytes(self.unreserved_bytes)} outside them"
            if self.cached_bytes + self.unreserved_bytes < self.requested_bytes:
                return f"This is no fragmentation: less is free than was requested, {free}"
            return f"As much as was requested is free, but not in one piece: {free}"
        verdict = "The GPU is fragmented, too"
        if self.share < FRAGMENTED_SHARE:
            verdict = "The GPU is full, with little fragmentation"
        return (
            f"{verdict}: {cached} are free, {100 * self.share:.0f} % of what PyTorch holds, and "
            f"{self._largest()}"
        )

    def _largest(self) -> str:
        largest = self.largest_bytes
        if largest is None:
            return "not in one block"
        if largest < self.requested_bytes:
            return f"the largest free block has {format_bytes(largest)}"
        return f"a free block of {format_bytes(largest)} belongs to another stream or graph"
