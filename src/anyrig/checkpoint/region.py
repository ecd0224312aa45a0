"""A part of a tensor: a box of its elements, such as one rank's shard."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Region:
    """A box of a tensor's elements.

    ::

        shape (4, 6)    . . . . . .
                        . . a a a .      start (1, 2), sizes (2, 3)
                        . . a a a .
                        . . . . . .

    Attributes:
        start: the index of the region's first element.
        sizes: how many elements the region has in each dimension.
    """

    start: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    def overlap(self, other: Region) -> Region | None:
        """Return the region that both regions share, or None."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(
            min(one + size, another + its_size)
            for one, size, another, its_size in zip(
                self.start, self.sizes, other.start, other.sizes, strict=True
            )
        )
        sizes = tuple(end - begin for begin, end in zip(start, stop, strict=True))
        return Region(start, sizes) if all(size > 0 for size in sizes) else None

    def slices_in(self, outer: Region) -> tuple[slice, ...]:
        """Return the indices of this region in a tensor that has the elements of `outer`."""
        return tuple(
            slice(begin - first, begin - first + size)
            for begin, first, size in zip(self.start, outer.start, self.sizes, strict=True)
        )


def whole_region(shape: Iterable[int]) -> Region:
    """Return the region of all elements."""
    sizes = tuple(shape)
    return Region((0,) * len(sizes), sizes)


def find_bad_region(shape: Sequence[int], regions: Sequence[Region]) -> str | None:
    """Return why regions do not cover a tensor exactly once, or None if they do."""
    shape = tuple(shape)
    for each in regions:
        if not len(each.start) == len(each.sizes) == len(shape) or any(
            start + size > length
            for start, size, length in zip(each.start, each.sizes, shape, strict=True)
        ):
            return f"of shape {shape} has a part of {each.sizes} at {each.start}"
    if sum(each.elements for each in regions) != math.prod(shape):
        return f"of shape {shape} is not covered by its {len(regions)} parts"
    # Regions with as many elements as the tensor cover it if none overlap. After sorting by the
    # first dimension, regions that can overlap are neighbours in nearly every layout.
    filled = sorted(each for each in regions if each.elements)
    for number, each in enumerate(filled):
        for other in filled[number + 1 :]:
            if other.start and other.start[0] >= each.start[0] + each.sizes[0]:
                break
            if each.overlap(other) is not None:
                return f"of shape {shape} has parts at {each.start} and {other.start} that overlap"
    return None
