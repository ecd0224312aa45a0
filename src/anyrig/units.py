"""Convert quantities to text, and byte counts back."""

from __future__ import annotations

import re

_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FACTORS = {"": 1, "B": 1, **_BINARY, **_DECIMAL}
_FOLDED_FACTORS = {unit.casefold(): factor for unit, factor in _FACTORS.items()}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def format_bytes(count: int | None) -> str:
    """Return `count` bytes as text in binary units: ``format_bytes(3 * 2**30)`` is ``'3.00 GiB'``.

    An unknown count (``None``) is ``'?'``.
    """
    if count is None:
        return "?"
    for unit, factor in reversed(_BINARY.items()):
        if abs(count) >= factor:
            return f"{count / factor:.2f} {unit}"
    return f"{count} B"


def format_seconds(seconds: float) -> str:
    """Return seconds as text: ``"1.50 s"``, ``"12.34 ms"``, ``"5.6 us"``."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{1e3 * seconds:.2f} ms"
    return f"{1e6 * seconds:.1f} us"


def format_rate(rate: float) -> str:
    """Return a number per second: a whole number from 100 on, else with three digits."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def format_span(low: float, high: float, joint: str = "and") -> str:
    """Return two durations in seconds as text, with one unit: ``"5.2 and 6.81 s"``."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    factor, unit = next((one for one in units if high >= one[0]), units[-1])
    low, high = low / factor, high / factor
    if high >= 999.5:
        return f"{low:,.0f} {joint} {high:,.0f} {unit}"
    return f"{low:.3g} {joint} {high:.3g} {unit}"


def format_count(count: int, noun: str) -> str:
    """Return `count` and the noun, plural unless it is 1: ``"1 device"``, ``"2 devices"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def parse_bytes(text: str) -> int:
    """Return the bytes that a string such as ``"16GiB"``, ``"1.5 GB"`` or ``"4096"`` names.

    Units ending in ``iB`` are powers of 1024, the others powers of 1000; case is ignored.

    Raises:
        ValueError: the text is not a number followed by a known unit.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2].casefold() not in _FOLDED_FACTORS:
        units = ", ".join(unit for unit in _FACTORS if unit)
        raise ValueError(
            f"cannot read {text!r} as a number of bytes; write a number and one of {units}"
        )
    count = float(match[1]) * _FOLDED_FACTORS[match[2].casefold()]
    if count == float("inf"):
        raise ValueError("the number of bytes has more than 300 digits; write a smaller one")
    return int(count)


def parse_seconds(text: str) -> float:
    """Return the seconds that a string such as ``"4.5us"`` or ``"2 ms"`` names.

    Raises:
        ValueError: the text is not a number above zero followed by a known unit.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in _SECONDS or float(match[1]) == 0:
        raise ValueError(
            f"cannot read {text!r} as a time; write a number above zero and one of "
            f"{', '.join(_SECONDS)}, such as 4.5us"
        )
    return float(match[1]) * _SECONDS[match[2]]
