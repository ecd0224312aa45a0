"""Columns of numbers as bytes that compress well and that a browser reads at once.

A column is stored as planes: the lowest byte of every number, then the second byte of every number,
and so on up to the highest byte in use. Neighbouring bytes are then alike, which zlib rewards.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple


class Column(NamedTuple):
    """The planes of a column, and how many bytes each number has."""

    planes: bytes
    width: int
    length: int


def pack(numbers: Sequence[int]) -> Column:
    """Pack numbers from 0 to 2**53 - 1, which a browser holds exactly, into a column."""
    words = array("Q", numbers)
    if sys.byteorder == "big":
        words.byteswap()
    width = (max(numbers, default=0).bit_length() + 7) // 8
    raw = words.tobytes()
    return Column(b"".join(raw[plane::8] for plane in range(width)), width, len(numbers))


def differences(numbers: Sequence[int]) -> list[int]:
    """Return each number's difference from the one before it, as a number that is not negative.

    0, -1, 1, -2, 2 become 0, 1, 2, 3, 4, so that small differences have few bytes.
    """
    return [
        2 * (number - before) if number >= before else 2 * (before - number) - 1
        for before, number in zip(chain((0,), numbers), numbers, strict=False)
    ]


def joined(columns: Iterable[Column]) -> bytes:
    """Return the planes of all columns, one after the other."""
    return b"".join(column.planes for column in columns)
