"""The page as a whole: the facts as text and pictures, then the data, the library and the scripts.

Everything that scripts draw also stands in the page as text or as a picture. The scripts mark the
page as live when they have read the data; only then are the pictures hidden, except on paper.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from .kinds import KINDS, LABELS, LAYER_LABELS, LAYERS
from .lanes import arrange
from .library import Library, find_library
from .memory_chart import make_charts
from .memory_curve import MemoryCurve, device_title, read_curve
from .memory_picture import draw_memory, draw_peak_kinds
from .payload import Payload, make_payload
from .quantities import format_number, format_seconds
from .step_picture import draw_step
from .summary import describe_origin, format_findings, format_summary
from .tables import list_clock_errors, list_devices, list_path, list_steps, list_totals
from .totals import add_up

_MOST_POINTS = 40_000  # of memory, over all devices
# They make one script, in this order.
_SCRIPTS = (
    "format",
    "decode",
    "theme",
    "view",
    "steps",
    "painter",
    "marks",
    "timeline",
    "details",
    "search",
    "memory",
    "tables",
    "keys",
    "main",
)


def format_page(facts: Mapping[str, Any]) -> str:
    """Return the page.

    Raises:
        ValueError: the facts are not version 1 of a rehearsal's facts.
    """
    found = (facts.get("format"), facts.get("version"))
    if found != ("anyrig-rehearsal", 1):
        raise ValueError(
            f"a page needs the facts of a rehearsal in version 1, not {found[0]!r} in version "
            f"{found[1]!r}; write them with the same version of anyrig"
        )
    begin, end = _bounds(facts)
    steps = _typical_steps(facts)
    curves = _read_curves(facts)
    totals = add_up(facts)
    lanes = arrange(facts, begin)
    library = find_library() if curves else None
    charts = make_charts(curves) if library else []
    payload = make_payload(facts, lanes, curves, totals, begin, charts)
    shown = (
        steps[0] if steps else {"number": 0, "begin_seconds": begin, "end_seconds": end, "path": []}
    )
    program = _read_scripts()
    parts = {
        "title": escape(f"{facts['program']} on {facts['rig']}"),
        "policy": _policy(program, *([library.script] if library else [])),
        "style": _read("page.css"),
        "program": escape(str(facts["program"])),
        "rig": escape(str(facts["rig"])),
        "origin": escape(describe_origin(facts)),
        "summary": format_summary(facts, steps),
        "legend": _legend({kind: LABELS[kind] for kind in KINDS}),
        "note": _note(payload),
        "picture_step": str(shown["number"]),
        "step_picture": draw_step(facts, lanes, shown, begin),
        "layers": _legend({layer: LAYER_LABELS[layer] for layer in LAYERS}),
        "memory_pictures": _draw_memories(facts, curves, end),
        "memory_note": _memory_note(curves, library),
        "peaks": _list_peaks(facts),
        "findings": format_findings(facts),
        "tables": "".join(
            [
                list_path(facts, steps),
                list_steps(facts),
                list_totals(facts, totals),
                list_devices(facts),
                list_clock_errors(facts),
            ]
        ),
        "licence": _licence(library),
        "data": payload.text,
        "library": library.compressed if library else "",
        "script": program,
    }
    return Template(_read("page.html")).substitute(parts)


def _bounds(facts: Mapping[str, Any]) -> tuple[float, float]:
    """Return the start and the end of all that the page shows, in seconds."""
    intervals, steps = facts["intervals"], facts["steps"]
    begins = [*intervals["begin_seconds"], *(step["begin_seconds"] for step in steps)]
    ends = [step["end_seconds"] for step in steps]
    ends += map(sum, zip(intervals["begin_seconds"], intervals["seconds"], strict=True))
    for memory in facts["memory"]:
        begins += memory["seconds"][:1]
        ends += memory["seconds"][-1:]
    return min(begins, default=0.0), max(ends, default=0.0)


def _typical_steps(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the typical steps, or else the last one, or none."""
    numbers = facts["typical_step"]["of_steps"] if facts["typical_step"] else []
    steps: Sequence[Mapping[str, Any]] = facts["steps"]
    return [step for step in steps if step["number"] in numbers] or list(steps[-1:])


def _read_curves(facts: Mapping[str, Any]) -> list[MemoryCurve]:
    memories = [memory for memory in facts["memory"] if memory["seconds"]]
    return [read_curve(facts, memory, _MOST_POINTS // len(memories)) for memory in memories]


def _draw_memories(facts: Mapping[str, Any], curves: Sequence[MemoryCurve], end: float) -> str:
    """Return the pictures of all devices, from the first step on, or else from the first point."""
    steps = facts["steps"]
    begin = steps[0]["begin_seconds"] if steps else min((c.seconds[0] for c in curves), default=0.0)
    return "".join(draw_memory(curve, begin, end) for curve in curves) or (
        "<p>No device held memory.</p>"
    )


def _list_peaks(facts: Mapping[str, Any]) -> str:
    peaks = []
    for memory in facts["memory"]:
        bar = draw_peak_kinds(memory["kinds_at_peak"])
        if bar:
            title = device_title(facts, memory["device"], memory.get("rank"))
            peaks.append(f'<div class="peak"><h3>{title}</h3>{bar}</div>')
    if not peaks:
        return ""
    return f'<h3>What the tensors are at the peak</h3><div class="peaks">{"".join(peaks)}</div>'


def _legend(labels: Mapping[str, str]) -> str:
    items = "".join(f'<li><i class="{name}"></i>{label}</li>' for name, label in labels.items())
    return f'<ul class="legend">{items}</ul>'


def _note(payload: Payload) -> str:
    if payload.shown == payload.intervals:
        return ""
    return (
        '<p class="note">To keep this page small, neighbours of one kind that are shorter than '
        f"{format_seconds(payload.limit_seconds)} are drawn as one: {format_number(payload.shown)} "
        f"boxes stand for {format_number(payload.intervals)} intervals. Sums and tables count all "
        "intervals.</p>"
    )


def _memory_note(curves: Sequence[MemoryCurve], library: Library | None) -> str:
    notes = []
    if any(curve.is_thinned for curve in curves):
        notes.append("To keep this page small, only the highest of neighbouring points are drawn.")
    if library is None and curves:
        notes.append(
            "These are pictures, because bokeh was not installed when this page was written; "
            "for charts that zoom: pip install 'anyrig[report]'."
        )
    return f'<p class="note">{escape(" ".join(notes))}</p>' if notes else ""


def _licence(library: Library | None) -> str:
    if library is None:
        return ""
    return (
        f"<details><summary>This page contains {escape(library.name)}</summary>"
        f"<pre>{escape(library.licence)}</pre></details>"
    )


def _read(name: str) -> str:
    return (
        resources.files(__package__).joinpath("assets").joinpath(name).read_text(encoding="utf-8")
    )


def _read_scripts() -> str:
    body = "\n".join(_read(f"{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}}})();\n'


def _policy(*scripts: str) -> str:
    """Return a content security policy: these scripts only, and no connection at all."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
