"""A footprint as a table for a terminal."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ..numbered_names import join_numbered
from ..units import format_bytes
from .device_footprint import DeviceFootprint
from .kinds import Kind
from .moment import Moment

_COLUMNS = 80
_LONGEST_LIST = 8


def format_table(devices: Sequence[DeviceFootprint]) -> str:
    """Return tables of each device's kinds and of its largest modules, names and lines."""
    console = Console(file=io.StringIO(), width=_COLUMNS, color_system=None)
    with console.capture() as capture:
        if not devices:
            console.print("No device held memory.")
        for device in devices:
            console.print(describe_peak(device), highlight=False, soft_wrap=True)
            console.print(_kinds(device))
            _print_largest(console, device.peak, " at the peak")
            console.print()
    return capture.get().rstrip() + "\n"


def format_moment(moment: Moment) -> str:
    """Return tables of one moment's kinds and of its largest modules, names and lines."""
    console = Console(file=io.StringIO(), width=_COLUMNS, color_system=None)
    with console.capture() as capture:
        kinds = {kind.value: count for kind, count in moment.by_kind().items() if count}
        console.print(_largest("kind", kinds, ""))
        _print_largest(console, moment, "")
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _print_largest(console: Console, moment: Moment, at: str) -> None:
    tables: Sequence[tuple[str, Mapping[Any, int], str]] = (
        ("module", moment.by_module(), "(no module)"),
        ("name", _names(moment), ""),
        ("line", moment.by_line(), "(before tracking)"),
    )
    for title, counts, unknown in tables:
        if counts.keys() - {None}:
            console.print(_largest(f"{title}{at}", counts, unknown))


def describe_peak(device: DeviceFootprint) -> str:
    """Return one line with a device's peak and the line of the program that caused it."""
    peak = device.peak
    of_total = f" of {format_bytes(device.total_bytes)}" if device.total_bytes else ""
    return f"{device.device}: peak {format_bytes(peak.allocated_bytes)}{of_total}{_where(peak)}"


def _where(moment: Moment) -> str:
    parts = []
    if moment.phase is not None and moment.phase != "outside":
        parts.append(f"in the {moment.phase}")
    if moment.module:
        parts.append(f"of {moment.module}")
    if moment.line is not None:
        parts.append(f"at {moment.line}")
    return f", {' '.join(parts)}" if parts else ""


def _kinds(device: DeviceFootprint) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kind", min_width=20)
    for title in ("start", "peak", "end"):
        table.add_column(title, justify="right", min_width=11)
    moments = [moment.by_kind() for moment in (device.start, device.peak, device.end)]
    for kind in Kind:
        counts = [moment.get(kind) for moment in moments]
        if kind is Kind.OUTSIDE:
            counts = [None, None, device.outside_bytes]
        if any(counts):
            table.add_row(kind.value, *("" if count is None else _text(count) for count in counts))
    return table


def _text(count: int) -> str:
    return format_bytes(count) if count else "0"


def _names(moment: Moment) -> dict[str | None, int]:
    return {name: count for name, count in moment.by_name().items() if name is not None}


def _join(counts: Mapping[Any, int], unknown: str) -> list[tuple[str, int]]:
    """Return names and their bytes, the most first.

    If there are more names than rows, names that differ only in a number share a row.
    """
    texts = {
        key: unknown if key is None else "(the model itself)" if key == "" else str(key)
        for key in counts
    }
    joined = join_numbered(texts.values()) if len(texts) > _LONGEST_LIST else {}
    bytes_of: Counter[str] = Counter()
    number_of: Counter[str] = Counter()
    for key, count in counts.items():
        text = joined.get(texts[key], texts[key])
        bytes_of[text] += count
        number_of[text] += 1
    return [
        (f"{text} ({number_of[text]} of them)" if number_of[text] > 1 else text, count)
        for text, count in bytes_of.most_common()
    ]


def _largest(title: str, counts: Mapping[Any, int], unknown: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", min_width=20, justify="right")
    table.add_column(title, overflow="fold")
    joined = _join(counts, unknown)
    for name, count in joined[:_LONGEST_LIST]:
        table.add_row(format_bytes(count), name)
    rest = [count for _, count in joined[_LONGEST_LIST:]]
    if rest:
        table.add_row(format_bytes(sum(rest)), f"({len(rest)} others)")
    return table
