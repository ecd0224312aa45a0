"""Checkpoints and their differences as text for a terminal, and as facts for JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ..checkpoint.compare import Comparison
from ..checkpoint.describe import CheckpointDescription, SeriesDescription
from ..checkpoint.mismatch import format_shape
from ..units import format_bytes, format_count


def format_description(description: CheckpointDescription | SeriesDescription) -> str:
    """Return what a checkpoint or a series holds."""
    if isinstance(description, SeriesDescription):
        return _format_series(description)
    return _format_checkpoint(description)


def format_comparison(found: Comparison) -> str:
    """Return how two checkpoints differ."""
    lines = [f"only in A: {_printable(name)}" for name in found.only_in_first]
    lines += [f"only in B: {_printable(name)}" for name in found.only_in_second]
    for name, (one, other) in found.other_shapes.items():
        shapes = f"{format_shape(one)} in A, {format_shape(other)} in B"
        lines.append(f"different shape: {_printable(name)}: {shapes}")
    if found.differences:
        rows = [
            (
                each.name,
                f"{each.largest_absolute:.3g}",
                f"{each.largest_relative:.3g}",
                f"{each.different_elements} of {each.elements}",
                each.dtypes[0] if len({*each.dtypes}) == 1 else " and ".join(each.dtypes),
            )
            for each in found.differences
        ]
        heads = ("tensor", "largest difference", "relative", "elements that differ", "type")
        lines += _columns([heads, *rows])
    lines.append(f"{format_count(found.equal, 'tensor')} equal")
    return "\n".join(lines)


def comparison_facts(found: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON, with the string ``"inf"`` for an infinite difference."""
    facts = asdict(found)
    for each in facts["differences"]:
        for key in ("largest_absolute", "largest_relative"):
            each[key] = each[key] if math.isfinite(each[key]) else "inf"
    return facts


def _format_series(series: SeriesDescription) -> str:
    has_metrics = any(each.metric is not None for each in series.checkpoints)
    rows = [("checkpoint", "step", *["metric"] * has_metrics, "size", "saved", "")]
    for each in series.checkpoints:
        named = (("latest", series.latest), ("best", series.best))
        marks = ", ".join(word for word, name in named if name == each.name)
        rows.append(
            (
                each.name,
                _text(each.step),
                *[_text(each.metric)] * has_metrics,
                format_bytes(each.bytes),
                _time(each.saved_at),
                f"damaged: {each.problem}" if each.problem else marks,
            )
        )
    count = format_count(len(series.checkpoints), "checkpoint")
    return "\n".join([f"{_printable(series.path)}: {count}", *_columns(rows)])


def _format_checkpoint(found: CheckpointDescription) -> str:
    lines = [_printable(f"{found.path}: {found.format} ({found.reason})")]
    facts = {
        "number": _text(found.number),
        "step": _text(found.step),
        "metric": _text(found.metric),
        "layout": found.layout or "?",
        "saved": _time(found.saved_at),
        "also": ", ".join(found.extra) or "?",
    }
    lines += [_printable(f"{word:<8}{value}") for word, value in facts.items() if value != "?"]
    lines += [_printable(f"not read: {name}: {why}") for name, why in found.unread.items()]
    files = ((name, format_bytes(size_bytes)) for name, size_bytes in found.files.items())
    lines += ["", *_columns([("file", "size"), *files])]
    tensors = (
        (each.name, format_shape(each.shape), each.dtype, each.file or "") for each in found.tensors
    )
    has_files = any(each.file for each in found.tensors)
    heads = ("tensor", "shape", "type", "file" if has_files else "")
    return "\n".join([*lines, "", *_columns([heads, *tensors])])


def _columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns, two spaces apart."""
    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _printable(text: str) -> str:
    """Escape the control characters of a text: files of other tools may hold any name."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _text(value: float | None) -> str:
    return "?" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OSError, OverflowError, ValueError):
        return "?"
