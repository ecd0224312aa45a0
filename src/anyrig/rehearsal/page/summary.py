"""The head of a page: what was rehearsed, and the figures that matter most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ...units import format_bytes, format_count, format_span
from .kinds import KINDS, LABELS
from .quantities import (
    device_title,
    format_memory,
    format_number,
    format_seconds,
    format_share,
)


def format_summary(facts: Mapping[str, Any], typical: Sequence[Mapping[str, Any]]) -> str:
    """Return the tiles and the bar of the critical path; `typical` are the typical steps."""
    tiles = "".join(
        f'<div class="tile"><dt>{escape(title)}</dt><dd>{escape(value)}'
        f"<small>{escape(note)}</small></dd></div>"
        for title, value, note in _tiles(facts)
    )
    return f'{_error(facts)}<dl class="tiles">{tiles}</dl>{_path_bar(typical)}'


def format_findings(facts: Mapping[str, Any]) -> str:
    """Return the findings, the one that saves the most time first."""
    findings = sorted(
        facts["findings"],
        key=lambda finding: (-(finding["saved_seconds"] or 0), -(finding["saved_bytes"] or 0)),
    )
    if not findings:
        if facts.get("measurement"):
            return (
                "<p>What a change would save is computed from predictions: "
                "<code>anyrig rehearse --report</code> lists it.</p>"
            )
        return "<p>No findings.</p>"
    return f'<ol class="findings">{"".join(map(_finding, findings))}</ol>'


def format_notes(facts: Mapping[str, Any]) -> str:
    """Return what was measured and what was not; nothing for a rehearsal."""
    measurement = facts.get("measurement")
    if not measurement:
        return ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in measurement["notes"])
    return f'<ul class="note">{notes}</ul>'


def describe_origin(facts: Mapping[str, Any]) -> str:
    """Return the command, the versions and whether values were computed, as text."""
    command = " ".join([facts["program"], *map(str, facts["arguments"])])
    end = f"anyrig {facts['anyrig']}, torch {facts['torch']} · exit status {facts['status']}"
    if facts.get("measurement"):
        return f"anyrig run {command} · measured by PyTorch's profiler · {end}"
    assumed = facts.get("assumed_ranks")
    ranks = f"rank 0 of {assumed['ranks']:,}, the others assumed alike · " if assumed else ""
    values = "shapes only, no values computed" if facts["shape_only"] else "all values computed"
    return f"anyrig rehearse {' '.join(_flags(facts))} {command} · {ranks}{values} · {end}"


def _flags(facts: Mapping[str, Any]) -> list[str]:
    """Return the flags on which times and memory depend."""
    flags = ["--rig", facts["rig"]]
    if facts.get("assume_values"):
        flags.append("--assume-values")
    elif facts["shape_only"]:
        flags.append("--shape-only")
    clock = facts.get("clock") or {}
    if clock.get("host_launch_seconds") is not None:
        flags += ["--host-launch", f"{1e6 * clock['host_launch_seconds']:g}us"]
    if clock.get("libraries") is not None:
        flags += ["--libraries", clock["libraries"]]
    return flags


def _tiles(facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    tiles = []
    typical = facts["typical_step"]
    if typical:
        numbers = ", ".join(map(str, typical["of_steps"]))
        count = len(typical["of_steps"])
        note = f"of steps {numbers}" if count <= 5 else f"of {count} steps"
        tiles.append(("typical step", format_seconds(typical["seconds"]), note))
        tiles += _interval_tile(facts.get("step_interval"))
        rate = typical.get("samples_per_second")
        if rate is not None:
            tiles.append(("throughput", f"{format_number(rate)}/s", "samples"))
    devices = facts["devices"]
    if devices:
        busy = [device["busy_share"] for device in devices if device["busy_share"] is not None]
        if busy:
            least, most = format_share(min(busy)), format_share(max(busy))
            text = least if least == most else f"{100 * min(busy):.0f} to {most}"
            waiting = [device.get("waiting_share") or 0 for device in devices]
            mean = format_share(sum(waiting) / len(waiting))
            tiles.append(("GPUs busy", text, f"{mean} waiting for other devices"))
        fullest = max(devices, key=lambda device: device["peak"].get("total_bytes") or 0)
        peak = fullest["peak"].get("total_bytes")
        of_all = format_memory(peak, fullest.get("capacity_bytes")).partition(" of ")[2]
        where = device_title(facts, fullest["index"], fullest["rank"]) + (
            f", of {of_all}" if of_all else ""
        )
        tiles.append(("memory peak", format_bytes(peak), where))
    saving = max(facts["findings"], key=lambda one: one["saved_seconds"] or 0, default=None)
    if saving and saving["saved_seconds"]:
        note = f"per step: {saving['title']}"
        tiles.append(("largest saving", _saved_seconds(saving), note))
    tiles.append(("steps", str(len(facts["steps"])), format_count(len(devices), "device")))
    return tiles


def _interval_tile(interval: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """Return the interval of the step on real GPUs, or why it is not known."""
    if interval is None:
        return []
    title, low, high = "on real GPUs", interval["low_seconds"], interval["high_seconds"]
    if low is None:
        return [(title, "not known", interval["reason"])]
    note = f"9 of 10 of {interval['programs']} measured {interval['reason']}"
    return [(title, format_span(low, high, "to"), note)]


def _path_bar(steps: Sequence[Mapping[str, Any]]) -> str:
    seconds_of = dict.fromkeys(KINDS, 0.0)
    for step in steps:
        for segment in step["path"]:
            seconds_of[segment["kind"]] += segment["seconds"]
    whole = sum(seconds_of.values())
    if not whole:
        return ""
    known = {kind: seconds for kind, seconds in seconds_of.items() if seconds}
    parts = "".join(
        f'<span class="{kind}" style="width:{100 * seconds / whole:.2f}%"></span>'
        for kind, seconds in known.items()
    )
    legend = "".join(
        f'<li><i class="{kind}"></i>{LABELS[kind]} '
        f"{format_seconds(seconds / len(steps))} ({format_share(seconds / whole)})</li>"
        for kind, seconds in known.items()
    )
    return (
        '<p class="bar-title">What decides the duration of a typical step (its critical path)</p>'
        f'<div class="bar" aria-hidden="true">{parts}</div><ul class="legend">{legend}</ul>'
    )


def _error(facts: Mapping[str, Any]) -> str:
    error = facts["error"]
    if error is None:
        return ""
    line = f" at <code>{escape(error['line'])}</code>" if error.get("line") else ""
    return (
        f'<div class="error" role="alert"><strong>{escape(error["kind"])}</strong>{line}'
        f"<pre>{escape(error['text'])}</pre></div>"
    )


def _saved_seconds(finding: Mapping[str, Any]) -> str:
    about = "about " if finding.get("is_estimate") else ""
    return f"{about}{format_seconds(finding['saved_seconds'])}"


def _finding(finding: Mapping[str, Any]) -> str:
    savings = []
    if finding["saved_seconds"]:
        savings.append(f"saves {_saved_seconds(finding)} per step")
    if finding["saved_bytes"]:
        savings.append(f"saves {format_bytes(finding['saved_bytes'])}")
    saved = "".join(f'<span class="saved">{escape(saving)}</span>' for saving in savings)
    line = finding["line"]
    place = f'<code class="place">{escape(line)}</code>' if line else ""
    return (
        f'<li><h3><span class="code">{escape(finding["code"])}</span> '
        f'{escape(finding["title"])}</h3><p class="facts">{saved}{place}</p>'
        f"<p>{escape(finding['text'])}</p>"
        f'<p class="remedy"><strong>Do:</strong> {escape(finding["remedy"])}</p></li>'
    )
