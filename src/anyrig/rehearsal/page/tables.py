"""The tables of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...numbered_names import join_numbered
from ...units import format_bytes
from .kinds import KINDS, LABELS
from .quantities import device_title, format_number, format_seconds, format_share
from .table import Cell, format_table
from .totals import Total

_LONGEST = 40
_PEAK_PARTS = ("most", "tensor", "workspace", "context", "collective", "cached", "headroom")


def list_steps(facts: Mapping[str, Any]) -> str:
    """Return the table of all steps, with the kinds of their critical paths."""
    shown = [
        kind
        for kind in KINDS
        if any(segment["kind"] == kind for step in facts["steps"] for segment in step["path"])
    ]
    has_samples = any(step.get("samples") is not None for step in facts["steps"])
    has_loader = any(step.get("loader_wall_seconds") for step in facts["steps"])
    rows = []
    for step in facts["steps"]:
        seconds = step["end_seconds"] - step["begin_seconds"]
        samples = step.get("samples")
        rate = samples / seconds if samples is not None and seconds else None
        of_kind = dict.fromkeys(shown, 0.0)
        for segment in step["path"]:
            of_kind[segment["kind"]] += segment["seconds"]
        rows.append(
            [
                Cell(f"{step['number']}{' (first)' if step['is_first'] else ''}", step["number"]),
                _seconds(seconds),
                *([Cell(format_number(rate), rate or 0)] if has_samples else []),
                Cell(str(step.get("waits", "?")), step.get("waits") or 0),
                *([_seconds(step["loader_wall_seconds"])] if has_loader else []),
                *(_seconds(of_kind[kind]) for kind in shown),
            ]
        )
    titles = ["step", "duration", *(["samples/s"] if has_samples else []), "waits for a device"]
    titles += ["loading here"] if has_loader else []
    titles += [f"path: {LABELS[kind]}" for kind in shown]
    return format_table("table-steps", "Steps", titles, rows)


def list_path(facts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> str:
    """Return what the critical path of the given steps passes through, by module and line."""
    path = [segment for step in steps for segment in step["path"]]
    joined = join_numbered(_text(facts, segment["module"]) for segment in path)
    seconds_of: dict[tuple[str, str, str], float] = {}
    for segment in path:
        module = joined[_text(facts, segment["module"])]
        key = (segment["kind"], module, _text(facts, segment["line"]))
        seconds_of[key] = seconds_of.get(key, 0.0) + segment["seconds"]
    whole = sum(seconds_of.values())
    largest = sorted(seconds_of.items(), key=lambda item: -item[1])
    rows = [
        [
            _seconds(seconds / len(steps)),
            Cell(format_share(seconds / whole), seconds / whole),
            Cell(LABELS[kind]),
            Cell(module, is_code=True),
            Cell(line, is_code=True),
        ]
        for (kind, module, line), seconds in largest[:_LONGEST]
        if seconds
    ]
    return format_table(
        "table-path",
        _caption(
            f"Critical path of a typical step{_star(key[1] for key in seconds_of)}", len(largest)
        ),
        ["per step", "share", "kind", "module", "line"],
        rows,
    )


def list_totals(facts: Mapping[str, Any], totals: Sequence[Total]) -> str:
    """Return the operators, modules and lines with the most time."""
    grouped: dict[tuple[str, str, str, str], Total] = {}
    joined = join_numbered(_text(facts, total.module) for total in totals)
    for total in totals:
        module = joined[_text(facts, total.module)]
        key = (total.kind, _text(facts, total.name), module, _text(facts, total.line))
        sums = grouped.setdefault(key, Total(total.kind, total.name, total.module, total.line))
        sums.add(total)
    largest = sorted(grouped.items(), key=lambda item: -item[1].seconds)
    typical_step = facts["typical_step"]
    steps = len(typical_step["of_steps"]) if typical_step else 0
    rows = [
        [
            _seconds(total.typical_seconds / steps if steps else None),
            _seconds(total.seconds),
            Cell(str(total.count), total.count),
            Cell(format_bytes(total.bytes) if total.bytes else "", total.bytes),
            Cell(LABELS[kind]),
            *(Cell(text, is_code=True) for text in (name, module, line)),
        ]
        for (kind, name, module, line), total in largest[:_LONGEST]
    ]
    return format_table(
        "table-totals",
        _caption(f"Where the time goes{_star(key[2] for key in grouped)}", len(largest)),
        ["per step", "in all", "number", "moved", "kind", "operator", "module", "line"],
        rows,
    )


def list_devices(facts: Mapping[str, Any]) -> str:
    """Return the devices, how busy they are, and what their memory holds at the peak."""
    rows = []
    for device in facts["devices"]:
        peak = device["peak"]
        rows.append(
            [
                Cell(device_title(facts, device["index"], device["rank"])),
                Cell(str(device["rank"])),
                Cell(str(device["gpu"])),
                *(_share(device.get(f"{share}_share")) for share in ("busy", "waiting", "idle")),
                _bytes(device.get("capacity_bytes")),
                _bytes(peak.get("total_bytes")),
                *(_bytes(peak.get(f"{part}_bytes")) for part in _PEAK_PARTS),
            ]
        )
    titles = ["device", "rank", "GPU", "busy", "waiting", "idle", "capacity", "peak", "at most"]
    titles += ["tensors", "workspaces", "context", "collectives", "cached", "headroom"]
    return format_table("table-devices", "Devices", titles, rows)


def _seconds(seconds: float | None) -> Cell:
    return Cell(format_seconds(seconds), seconds or 0.0)


def _share(share: float | None) -> Cell:
    return Cell(format_share(share) if share is not None else "not measured", share or 0)


def _bytes(count: int | None) -> Cell:
    return Cell(format_bytes(count) if count is not None else "not measured", count or 0)


def _text(facts: Mapping[str, Any], index: int | None) -> str:
    return "" if index is None or index < 0 else str(facts["texts"][index])


def _star(modules: Iterable[str]) -> str:
    return "; * is any number" if any("*" in module for module in modules) else ""


def _caption(title: str, rows: int) -> str:
    return title if rows <= _LONGEST else f"{title} (the longest {_LONGEST} of {rows})"
