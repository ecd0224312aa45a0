"""The page as a whole: the facts as text and pictures, then the data and the scripts.

The scripts draw the time line, and mark the page as live when they have read the data. All other
parts of the page need no scripts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from .kinds import KINDS, LABELS, LAYER_LABELS
from .lanes import arrange
from .memory_picture import draw_memory, draw_peak_kinds, known_layers
from .payload import Payload, make_payload
from .quantities import device_title, format_number, format_seconds
from .summary import describe_origin, format_findings, format_notes, format_summary
from .tables import list_devices, list_path, list_steps, list_totals
from .totals import add_up

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
    totals = add_up(facts)
    lanes = arrange(facts, begin)
    payload = make_payload(facts, lanes, totals, begin)
    program = _read_scripts()
    parts = {
        "title": escape(f"{facts['program']} on {facts['rig']}"),
        "policy": _policy(program),
        "style": _read("page.css"),
        "program": escape(str(facts["program"])),
        "rig": escape(str(facts["rig"])),
        "verb": "measured" if facts.get("measurement") else "rehearsed",
        "notes": format_notes(facts),
        "origin": escape(describe_origin(facts)),
        "summary": format_summary(facts, steps),
        "legend": _legend({kind: LABELS[kind] for kind in KINDS}),
        "note": _note(payload),
        "layers": _legend(_layers(facts)),
        "memory_pictures": _draw_memories(facts, end),
        "peaks": _list_peaks(facts),
        "findings": format_findings(facts),
        "tables": "".join(
            [
                list_path(facts, steps),
                list_steps(facts),
                list_totals(facts, totals),
                list_devices(facts),
            ]
        ),
        "data": payload.text,
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


def _layers(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of the layers of memory that a device has, or of all without devices."""
    known = {layer for memory in facts["memory"] for layer in known_layers(memory)}
    return {name: label for name, label in LAYER_LABELS.items() if name in known or not known}


def _draw_memories(facts: Mapping[str, Any], end: float) -> str:
    """Return the pictures of all devices, from the first step on, or else from the first point."""
    steps, memories = facts["steps"], [one for one in facts["memory"] if one["seconds"]]
    if not memories:
        return "<p>No device held memory.</p>"
    begin = steps[0]["begin_seconds"] if steps else min(one["seconds"][0] for one in memories)
    return "".join(
        draw_memory(one, device_title(facts, one["device"], one.get("rank")), begin, end)
        for one in memories
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


def _read(name: str) -> str:
    return (
        resources.files(__package__).joinpath("assets").joinpath(name).read_text(encoding="utf-8")
    )


def _read_scripts() -> str:
    body = "\n".join(_read(f"{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}}})();\n'


def _policy(script: str) -> str:
    """Return a content security policy: this script only, and no connection at all."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
