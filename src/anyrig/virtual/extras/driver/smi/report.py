"""The output of ``-q``: all values of each GPU, one per line, or only the sections of ``-d``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pynvml

from .fields import GPU_FIELDS
from .gpu import Gpu, cuda_version
from .refusal import Refusal

_INVALID = 2
_GENERAL = {
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
# The name of each section in -d, its heading, and the field on each line.
_SECTIONS: dict[str, tuple[str, dict[str, str]]] = {
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


def report(gpus: Sequence[Gpu], attached: int, sections: Sequence[str]) -> str:
    """Return the log of `gpus`.

    Args:
        gpus: the GPUs to report on.
        attached: the number of GPUs in the node.
        sections: the sections to print; empty for all.

    Raises:
        Refusal: a section is unknown.
    """
    for section in sections:
        if section not in (*_SECTIONS, "PIDS"):
            raise Refusal(
                f'"{section}" is not a valid parameter to "-d" switch. '
                "Please run 'nvidia-smi -h' for help.",
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
        _line("Attached GPUs", attached),
    ]
    for gpu in gpus:
        lines += [f"GPU {gpu.bus_id}", *_section_lines(gpu, sections), ""]
    return "\n".join(lines) + "\n"


def _section_lines(gpu: Gpu, sections: Sequence[str]) -> Iterator[str]:
    if not sections:
        yield from _values(gpu, _GENERAL, 4)
    for section, (heading, names) in _SECTIONS.items():
        if not sections or section in sections:
            yield f"    {heading}"
            yield from _values(gpu, names, 8)
    if not sections or "PIDS" in sections:
        holders = gpu.holders()
        yield "    Processes" if holders else _line("Processes", "None", 4)
        for holder in holders:
            yield _line("Process ID", holder.pid, 8)
            yield _line("Type", "C", 12)
            yield _line("Name", holder.name, 12)
            yield _line("Used GPU Memory", f"{holder.used_bytes // 2**20} MiB", 12)


def _values(gpu: Gpu, names: Mapping[str, str], indent: int) -> Iterator[str]:
    for label, name in names.items():
        unit, read = GPU_FIELDS[name]
        value = read(gpu)
        unit = unit or _UNITS.get(name)
        yield _line(label, "N/A" if value is None else f"{value} {unit}" if unit else value, indent)


def _line(label: str, value: object, indent: int = 0) -> str:
    return f"{' ' * indent + label:<42}: {value}"
