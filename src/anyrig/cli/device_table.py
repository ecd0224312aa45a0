"""Devices as a table that fits 80 columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..devices.activity import read_all
from ..devices.inventory import survey
from ..devices.reading import Reading
from ..units import format_bytes

if TYPE_CHECKING:
    from ..devices.place import Places

_NARROWEST_COLUMNS = 80


def show_utilization(rig: Places | None = None, file: TextIO | None = None) -> None:
    """Print the current free memory, utilization, temperature and processes of the devices.

    Replaces ``GPUtil.showUtilization()`` on any rig.

    Args:
        rig: the devices to show; by default all devices of this computer.
        file: the stream to print to; by default standard output.
    """
    devices = survey() if rig is None else rig
    console = Console(file=file)
    if not console.is_terminal:
        console = Console(file=file, width=_NARROWEST_COLUMNS)
    console.print(device_table(read_all(devices)))


def device_table(readings: Iterable[Reading]) -> Group:
    """Return a table with a row per device, followed by a line for each unusable device."""
    # If the table is too wide, rich narrows columns without no_wrap. Their cells cut off the text.
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    table.add_column("device", no_wrap=True)
    table.add_column("name", min_width=12)
    table.add_column("free", justify="right", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    table.add_column("busy", justify="right", no_wrap=True)
    table.add_column("°C", justify="right", no_wrap=True)
    table.add_column("used by")
    errors = []
    for reading in readings:
        error = reading.device.error or reading.error
        table.add_row(*_row(reading), style="dim" if error else None)
        if error:
            errors.append(Text(f"{reading.device}: {error}", style="red"))
    return Group(table, *errors)


def _row(reading: Reading) -> tuple[str | Text, ...]:
    device = reading.device
    return (
        device.text,
        _cut_to_fit(device.name),
        format_bytes(reading.free_bytes),
        format_bytes(device.total_bytes),
        "?" if reading.utilization is None else f"{reading.utilization:.0%}",
        "?" if reading.temperature_celsius is None else f"{reading.temperature_celsius:.0f}",
        _cut_to_fit(_users(reading)),
    )


def _cut_to_fit(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _users(reading: Reading) -> str:
    """Return the largest process and the number of further processes."""
    if reading.processes is None:
        return "" if reading.device.kind == "cpu" else "?"
    if not reading.processes:
        return "nobody"
    largest, *others = sorted(reading.processes, key=lambda p: p.used_bytes or 0, reverse=True)
    more = f" +{len(others)}" if others else ""
    return f"{largest.name or 'process'} {largest.pid}{more}"
