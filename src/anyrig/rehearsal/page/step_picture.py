"""The time line of one step as an SVG, for paper and for readers without scripts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .kinds import KINDS
from .lanes import Lane
from .quantities import format_seconds

_WIDTH, _GUTTER = 960, 144
_ROW, _SPACE, _TOP = 14, 3, 22
_NARROWEST = 0.4  # units of the picture; intervals closer than this are drawn as one


def draw_step(
    facts: Mapping[str, Any], lanes: Sequence[Lane], step: Mapping[str, Any], origin_seconds: float
) -> str:
    """Return the picture: the critical path on top, then one row for each lane."""
    begin = round((step["begin_seconds"] - origin_seconds) * 1e9)
    end = max(begin + 1, round((step["end_seconds"] - origin_seconds) * 1e9))
    scale = (_WIDTH - _GUTTER) / (end - begin)
    rows = [_text(_TOP + _ROW - 3, "critical path")]
    path = _path_lane(step, begin)
    rows.append(_boxes(path, begin, end, scale, _TOP))
    top = _TOP + _ROW + 2 * _SPACE
    before = None
    for lane in lanes:
        if lane.track != before:
            top += _SPACE
            rows.append(_text(top + _ROW - 3, str(facts["tracks"][lane.track]["title"])))
            is_stream = facts["tracks"][lane.track]["device"] is not None
            kind = "idle" if is_stream else "empty"
            rows.append(
                f'<rect class="{kind}" x="{_GUTTER}" y="{top}" '
                f'width="{_WIDTH - _GUTTER}" height="{_ROW}"/>'
            )
            before = lane.track
        rows.append(_boxes(lane, begin, end, scale, top))
        top += _ROW
    title = f"the time line of step {step['number']}"
    return (
        f'<svg class="step-picture" viewBox="0 0 {_WIDTH} {top + 4}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>'
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="hatch" d="M0 0V6"/></pattern></defs>'
        f"{_axis(end - begin, scale, top)}{''.join(rows)}</svg>"
    )


def _path_lane(step: Mapping[str, Any], begin: int) -> Lane:
    lane = Lane(-1)
    seconds = 0.0
    for segment in step["path"]:
        lane.begin_ns.append(begin + round(seconds * 1e9))
        seconds += segment["seconds"]
        lane.end_ns.append(begin + round(seconds * 1e9))
        lane.kind.append(KINDS.index(segment["kind"]))
    return lane


def _boxes(lane: Lane, begin: int, end: int, scale: float, top: int) -> str:
    """Return one SVG path for each kind in the lane."""
    boxes: dict[int, list[list[float]]] = {}
    first, last = bisect_right(lane.end_ns, begin), bisect_left(lane.begin_ns, end)
    for index in range(first, last):
        left = _GUTTER + (max(lane.begin_ns[index], begin) - begin) * scale
        right = _GUTTER + (min(lane.end_ns[index], end) - begin) * scale
        of_kind = boxes.setdefault(lane.kind[index], [])
        if of_kind and left - of_kind[-1][1] < _NARROWEST:
            of_kind[-1][1] = right
        else:
            of_kind.append([left, right])
    return "".join(
        f'<path class="{KINDS[kind]}" d="'
        + "".join(
            f"M{left:.1f} {top}h{max(right - left, _NARROWEST):.1f}v{_ROW}"
            f"h{-max(right - left, _NARROWEST):.1f}z"
            for left, right in of_kind
        )
        + '"/>'
        for kind, of_kind in sorted(boxes.items())
    )


def _axis(duration_ns: int, scale: float, bottom: int) -> str:
    spacing = _round_spacing(duration_ns / 8)
    marks = []
    for tick in range(int(duration_ns // spacing) + 1):
        x = _GUTTER + tick * spacing * scale
        anchor = "start" if tick == 0 else "end" if x > _WIDTH - 30 else "middle"
        marks.append(
            f'<path class="tick" d="M{x:.1f} {_TOP - 4}V{bottom}"/>'
            f'<text class="axis" x="{x:.1f}" y="{_TOP - 8}" text-anchor="{anchor}">'
            f"{format_seconds(tick * spacing / 1e9)}</text>"
        )
    return "".join(marks)


def _round_spacing(at_least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, 50 … that is at least the number."""
    power = 1.0
    while True:
        for factor in (1, 2, 5):
            if factor * power >= at_least:
                return factor * power
        power *= 10


def _text(baseline: int, text: str) -> str:
    shown = text if len(text) <= 22 else f"{text[:21]}…"
    return f'<text x="0" y="{baseline}">{escape(shown)}</text>'
