"""Seconds, shares and counts as text, and the names of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...units import format_bytes

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def format_seconds(seconds: float | None) -> str:
    """Return a duration with three significant digits: ``format_seconds(0.01234)``: ``12.3 ms``."""
    if seconds is None:
        return "?"
    if seconds == 0:
        return "0 s"
    for factor, unit in _UNITS:
        if abs(seconds) >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def format_share(share: float | None) -> str:
    """Return a fraction as a percentage, with a non-breaking space before the sign."""
    return "?" if share is None else f"{100 * share:.0f}\u00a0%"


def format_number(number: float | None) -> str:
    """Return a number with three significant digits and thin spaces between thousands."""
    return "?" if number is None else _three_digits(number)


def format_memory(count: int | None, capacity: int | None) -> str:
    """Return bytes and their share of a device: ``61.20 GiB of 79.25 GiB (77 %)``."""
    if count is None or not capacity:
        return format_bytes(count)
    return f"{format_bytes(count)} of {format_bytes(capacity)} ({format_share(count / capacity)})"


def device_title(facts: Mapping[str, Any], index: int, rank: int | None) -> str:
    """Return ``cuda:1``, with the rank if other ranks use a device of this index too."""
    ranks = {device["rank"] for device in facts["devices"] if device["index"] == index}
    return f"cuda:{index}" if rank is None or len(ranks) < 2 else f"rank {rank} cuda:{index}"


def _three_digits(number: float) -> str:
    if abs(number) >= 999.5:
        return f"{number:,.0f}".replace(",", "\u202f")
    decimals = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{decimals}f}"
