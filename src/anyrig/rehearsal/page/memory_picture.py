"""The memory of a device over time as an SVG, and what the peak is made of as a bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ...units import format_bytes
from .kinds import LAYERS

_WIDTH, _HEIGHT, _GUTTER = 960, 110, 144
_MOST_POINTS = 400
KINDS_AT_PEAK = ("parameters", "gradients", "optimizer", "activations", "other")


def known_layers(memory: Mapping[str, Any]) -> list[str]:
    """Return the names of the layers that one entry of the facts' ``memory`` has, bottom first."""
    return [name for name in LAYERS if memory[f"{name}_bytes"] is not None]


def draw_memory(memory: Mapping[str, Any], title: str, begin: float, end: float) -> str:
    """Return stacked areas of the layers of a device's memory over time.

    Of many points, the highest of each of 400 stretches is drawn, so that the peak is always there.

    Args:
        memory: an entry of the facts' ``memory``.
        title: what to call the device.
        begin: where the picture begins, in seconds.
        end: where it ends.
    """
    seconds: Sequence[float] = memory["seconds"]
    layers = {name: memory[f"{name}_bytes"] for name in known_layers(memory)}
    totals = [sum(values) for values in zip(*layers.values(), strict=True)]
    highest = max(totals, default=0)
    if not highest or end <= begin:
        return f"<p>{escape(title)}: no memory was allocated.</p>"
    chosen = _highest_points(totals)
    corners = [
        _GUTTER + (_WIDTH - _GUTTER) * max(seconds[point] - begin, 0.0) / (end - begin)
        for point in chosen
    ]
    below = [0] * len(chosen)
    areas = []
    for layer, counts in layers.items():
        values = [counts[point] for point in chosen]
        above = [low + value for low, value in zip(below, values, strict=True)]
        if any(values):
            upper, lower = _steps(corners, above, highest), _steps(corners, below, highest)
            areas.append(f'<polygon class="{layer}" points="{" ".join(upper + lower[::-1])}"/>')
        below = above
    return (
        f'<svg class="memory-picture" viewBox="0 0 {_WIDTH} {_HEIGHT + 8}" role="img" '
        f'aria-label="{escape(title)}, at most {format_bytes(highest)}">'
        f'<path class="tick" d="M{_GUTTER} 4H{_WIDTH}M{_GUTTER} {_HEIGHT + 4}H{_WIDTH}"/>'
        f'<text x="0" y="14">{escape(title)}</text>'
        f'<text class="axis" x="0" y="32">{format_bytes(highest)}</text>{"".join(areas)}</svg>'
    )


def draw_peak_kinds(kinds: Mapping[str, Any] | None) -> str:
    """Return a bar of what the tensors were at the peak, with a legend; or nothing."""
    known = {kind: (kinds or {}).get(kind) or 0 for kind in KINDS_AT_PEAK}
    total = sum(known.values())
    if not total:
        return ""
    parts = "".join(
        f'<span class="{kind}" style="width:{100 * count / total:.2f}%"></span>'
        for kind, count in known.items()
        if count
    )
    legend = "".join(
        f'<li><i class="{kind}"></i>{kind} {format_bytes(count)}</li>'
        for kind, count in known.items()
        if count
    )
    return f'<div class="bar" aria-hidden="true">{parts}</div><ul class="legend">{legend}</ul>'


def _highest_points(totals: Sequence[int]) -> list[int]:
    """Return the indexes of the highest point of each of many equal stretches."""
    points = len(totals)
    stretch = -(-points // _MOST_POINTS)
    return [
        max(range(begin, min(begin + stretch, points)), key=totals.__getitem__)
        for begin in range(0, points, stretch)
    ]


def _steps(corners: Sequence[float], values: Sequence[int], highest: int) -> list[str]:
    heights = [_HEIGHT + 4 - _HEIGHT * value / highest for value in values]
    points = []
    for index, (x, y) in enumerate(zip(corners, heights, strict=True)):
        following = corners[index + 1] if index + 1 < len(corners) else float(_WIDTH)
        points += [f"{x:.1f},{y:.1f}", f"{following:.1f},{y:.1f}"]
    return points
