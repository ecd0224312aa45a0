"""The search for the largest value that fits, in few rehearsals.

::

    memory
      limit |- - - - - - - - - - - - - - - - x- - -
            |                             /  .
            |                    8 ●- - -    .         two values, a line through them,
            |        1 ●- - - - -            .         the largest value below the limit,
            +--------------------------------●-----    and a rehearsal that proves it

Memory is assumed to grow with the value, but for the least one: where it is likely to fit, and not
certain, larger ones may be certain, since the allocator rounds their blocks otherwise. Points of
another rig, if there are any, take the place of the first two: the line through them is moved to
what one rehearsal finds on this rig.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from .candidate import Candidate, Verdict
from .variation import Variation

# Each value is this many times the last one, until two of them predict the limit.
_GROWTH = 8
# How many times the largest value that fits a line may reach, and by how much to fall short of its
# promise beyond that.
_REACH, _STEP_BACK = 16, 4
# The search ends when the largest value that fits is known to this fraction. Of the values so near,
# a power of two or a multiple of eight is preferred.
_RESOLUTION = 0.02
# A GPU with no more than this fraction left is full.
_LITTLE = 0.05
_MOST_REHEARSALS = 16


@dataclass(frozen=True)
class Point:
    """The upper bound of memory for one value, on the fullest GPU."""

    value: int
    most_bytes: int


def search(
    variation: Variation, limit_bytes: int, hints: Sequence[Point]
) -> Generator[int, Candidate, None]:
    """Yield values to rehearse, and take what was found; end when the largest one is known.

    Args:
        variation: the range of values.
        limit_bytes: the memory of the smallest GPU.
        hints: points of another rig.
    """
    tried: dict[int, Candidate] = {}
    while len(tried) < _MOST_REHEARSALS:
        value = _choose(variation, limit_bytes, hints, tried)
        if value is None or value in tried:
            return
        found = yield value
        if found.verdict.says_nothing_of_memory:
            return
        tried[value] = found


def points_of(tried: Sequence[Candidate], limit_bytes: int) -> list[Point]:
    """Return the upper bounds that candidates have, by rising value."""
    points = [
        Point(one.value, limit_bytes - one.spare_bytes)
        for one in tried
        if one.value is not None and one.spare_bytes is not None
    ]
    return sorted(points, key=lambda point: point.value)


def _choose(
    variation: Variation,
    limit_bytes: int,
    hints: Sequence[Point],
    tried: dict[int, Candidate],
) -> int | None:
    first, last = variation.first, variation.last
    fits = max((v for v, one in tried.items() if one.verdict is Verdict.CERTAIN), default=None)
    if fits is not None:
        tried = {v: one for v, one in tried.items() if v >= fits or one.verdict is Verdict.CERTAIN}
    fails = min((v for v, one in tried.items() if one.verdict is not Verdict.CERTAIN), default=None)
    own = points_of([*tried.values()], limit_bytes)
    curve = own if len(own) > 1 else _moved(hints, own)
    guess = predict(curve, limit_bytes)
    if fits is None:
        if fails == first:
            are_likely = all(one.verdict is Verdict.LIKELY for one in tried.values())
            return min(2 * max(tried), last) if are_likely else None
        if guess is None or guess >= (fails or last + 1):  # no hints, or they are wrong here
            return first if fails is not None or guess is None else last
        return prefer(max(first, guess), first)
    if fits == last or (fails is not None and fails - fits <= max(1, _RESOLUTION * fits)):
        return None
    if fails is not None:
        # Where a hint was wrong by more than the margin, its slope is not that of this rig.
        is_wrong = len(own) < 2 and tried[fails].verdict is Verdict.NO
        if guess is None or is_wrong:
            return max(math.isqrt(fits * fails), fits + 1)
        if guess >= fails:  # the line promised too much
            return max((fits + fails) // 2, fits + 1)
    if guess is None:  # one point, or a flat line
        return last if len(own) > 1 else min(_GROWTH * fits, last)
    if not hints and guess > _REACH * fits:  # the rise so far may be that of an optimizer's step
        guess = max(guess // _STEP_BACK, fits + 1)
    guess = min(guess, last)
    if guess <= fits * (1 + _RESOLUTION):
        # A single point does not prove the hints.
        is_proven = len(own) > 1 or fails is not None or _is_full(own[0], limit_bytes)
        return None if is_proven else fits + 1
    return prefer(guess, fits + 1)


def _is_full(point: Point, limit_bytes: int) -> bool:
    return limit_bytes - point.most_bytes <= _LITTLE * limit_bytes


def _moved(hints: Sequence[Point], own: Sequence[Point]) -> Sequence[Point]:
    """Return the hints, moved so that they go through the one point that is known here."""
    if not hints or not own:
        return hints or own
    (known,) = own
    shift = known.most_bytes - _bytes_at(hints, known.value)
    return [Point(each.value, each.most_bytes + shift) for each in hints]


def _segment(curve: Sequence[Point], place: int) -> tuple[Point, Point]:
    """Return the two points between which `place` lies, or the two that are nearest."""
    index = min(max(place, 1), len(curve) - 1)
    return curve[index - 1], curve[index]


def _bytes_at(curve: Sequence[Point], value: int) -> int:
    if len(curve) == 1:
        return curve[0].most_bytes
    low, high = _segment(curve, bisect_right([point.value for point in curve], value))
    slope = (high.most_bytes - low.most_bytes) / (high.value - low.value)
    return int(low.most_bytes + slope * (value - low.value))


def predict(curve: Sequence[Point], limit_bytes: int) -> int | None:
    """Return the largest value whose memory is within the limit, by lines through the points.

    Returns:
        the value, which may lie outside the points; None for fewer than two points, or if memory
        does not grow between the last of them.
    """
    if len(curve) < 2:
        return None
    low, high = _segment(curve, sum(point.most_bytes <= limit_bytes for point in curve))
    rise = high.most_bytes - low.most_bytes
    if rise <= 0:
        return None
    return low.value + (limit_bytes - low.most_bytes) * (high.value - low.value) // rise


def prefer(value: int, least: int) -> int:
    """Return a rounder value that is less by 2 % at most and not below `least`, if there is one.

    Powers of two come before multiples of eight.
    """
    for rounded in (1 << (value.bit_length() - 1), value - value % 8):
        if rounded >= max(least, value * (1 - _RESOLUTION)):
            return rounded
    return value
