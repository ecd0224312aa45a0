"""Columns of numbers as bytes that compress well and that a browser reads at once.

A column is stored as planes: the lowest byte of every number, then the second byte of every number,
and so on up to the highest byte in use. Neighbouring bytes are then alike, which zlib rewards.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
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
