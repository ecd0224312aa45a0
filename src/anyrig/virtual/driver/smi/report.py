"""``-q``: everything of each card, a value a line; ``-d MEMORY,POWER`` only those parts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pynvml

from .card import Card, cuda_version
from .fields import CARD_FIELDS
from .refusal import Refusal

_INVALID = 2
_ABOUT = {
    "Product Name": "name",
    "Display Mode": "display_mode",
    "Display Active": "display_active",
    "Persistence Mode": "persistence_mode",
    "Serial Number": "serial",
    "GPU UUID": "uuid",
    "Bus Id": "pci.bus_id",
    "Fan Speed": "fan.speed",
    "Performance State": "pstate",
    "Compute Mode": "compute_mode",
}
# The name of each part for -d, its heading, and its lines.
_PARTS: dict[str, tuple[str, dict[str, str]]] = {
    "MEMORY": (
        "FB Memory Usage",
        {
            "Total": "memory.total",
            "Reserved": "memory.reserved",
            "Used": "memory.used",
            "Free": "memory.free",
        },
    ),
    "UTILIZATION": (
        "Utilization",
        {
            "GPU": "utilization.gpu",
            "Memory": "utilization.memory",
            "Encoder": "utilization.encoder",
            "Decoder": "utilization.decoder",
        },
    ),
    "TEMPERATURE": ("Temperature", {"GPU Current Temp": "temperature.gpu"}),
    "POWER": (
        "GPU Power Readings",
        {
            "Average Power Draw": "power.draw",
            "Current Power Limit": "power.limit",
            "Default Power Limit": "power.default_limit",
        },
    ),
    "CLOCK": (
        "Clocks",
        {
            "Graphics": "clocks.gr",
            "SM": "clocks.sm",
            "Memory": "clocks.mem",
            "Video": "clocks.video",
        },
    ),
}
_UNITS = {"temperature.gpu": "C"}


def report(cards: Sequence[Card], count: int, parts: Sequence[str]) -> str:
    """Return the log of `cards`, which are `count` in all."""
    for part in parts:
        if part not in (*_PARTS, "PIDS"):
            raise Refusal(
                f'"{part}" is not a valid parameter to "-d" switch. Please run \'nvidia-smi -h\' '
                "for help.",
                _INVALID,
            )
    lines = [
        "",
        "==============NVSMI LOG==============",
        "",
        _line("Timestamp", time.strftime("%a %b %e %H:%M:%S %Y")),
        _line("Driver Version", pynvml.nvmlSystemGetDriverVersion()),
        _line("CUDA Version", cuda_version()),
        "",
        _line("Attached GPUs", count),
    ]
    for card in cards:
        lines += [f"GPU {card.bus_id}", *_of_card(card, parts), ""]
    return "\n".join(lines) + "\n"


def _of_card(card: Card, parts: Sequence[str]) -> Iterator[str]:
    if not parts:
        yield from _values(card, _ABOUT, 4)
    for part, (heading, names) in _PARTS.items():
        if not parts or part in parts:
            yield f"    {heading}"
            yield from _values(card, names, 8)
    if not parts or "PIDS" in parts:
        holders = card.holders()
        yield "    Processes" if holders else _line("Processes", "None", 4)
        for holder in holders:
            yield _line("Process ID", holder.pid, 8)
            yield _line("Type", "C", 12)
            yield _line("Name", holder.name, 12)
            yield _line("Used GPU Memory", f"{holder.used_bytes // 2**20} MiB", 12)


def _values(card: Card, names: Mapping[str, str], indent: int) -> Iterator[str]:
    for label, name in names.items():
        unit, read = CARD_FIELDS[name]
        value = read(card)
        unit = unit or _UNITS.get(name)
        yield _line(label, "N/A" if value is None else f"{value} {unit}" if unit else value, indent)


def _line(label: str, value: object, indent: int = 0) -> str:
    return f"{' ' * indent + label:<42}: {value}"
