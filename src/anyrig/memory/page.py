"""A footprint as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..units import format_bytes
from .curve import Curve
from .device_footprint import DeviceFootprint
from .kinds import Kind
from .table import describe_peak

_WIDTH, _HEIGHT = 960, 320
_LONGEST_LIST = 20
# A palette that is safe for colour-blind readers: Okabe and Ito, https://jfly.uni-koeln.de/color
_COLOURS = {
    Kind.PARAMETERS: "#0072b2",
    Kind.GRADIENTS: "#56b4e9",
    Kind.OPTIMIZER_STATE: "#009e73",
    Kind.BUFFERS: "#004d40",
    Kind.ACTIVATIONS: "#e69f00",
    Kind.BATCH: "#cc79a7",
    Kind.OTHER: "#999999",
    Kind.TEMPORARIES: "#f0e442",
    Kind.WORKSPACES: "#d55e00",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem } table { border-collapse: collapse }
td, th { padding: .1rem 1rem .1rem 0; text-align: left } td.bytes { text-align: right }
svg { width: 100%; height: auto; background: #fafafa } i { display: inline-block; width: .8em;
height: .8em; margin: 0 .3em 0 1em } p { margin: .3rem 0 } code { font-size: .9em }
"""


def format_page(devices: Sequence[DeviceFootprint]) -> str:
    """Return a self-contained page with a chart and tables for each device."""
    body = "".join(_section(device) for device in devices) or "<p>No device held memory.</p>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Memory footprint</title><style>{_STYLE}</style></head>"
        f"<body><h1>Memory footprint</h1>{body}</body></html>\n"
    )


def _section(device: DeviceFootprint) -> str:
    peak = device.peak
    return (
        f"<h2>{escape(describe_peak(device))}</h2>{_chart(device.curve)}"
        + _table("kind at the peak", {kind.value: n for kind, n in peak.by_kind().items()})
        + _table("module at the peak", peak.by_module())
        + _table("name at the peak", peak.by_name())
        + _table("line at the peak", peak.by_line())
    )


def _chart(curve: Curve) -> str:
    """Return an SVG of the curve as stacked areas, in the order of `Kind`."""
    kinds = [kind for kind in Kind if any(curve.bytes_of.get(kind, ()))]
    points = len(curve.seconds)
    if not kinds or not points:
        return "<p>Nothing was allocated or freed.</p>"
    totals = [sum(curve.bytes_of[kind][point] for kind in kinds) for point in range(points)]
    highest = max([*totals, *curve.reserved_bytes])

    def line(values: Sequence[int]) -> list[str]:
        return [
            f"{point * _WIDTH / max(points - 1, 1):.1f},{_HEIGHT - value * _HEIGHT / highest:.1f}"
            for point, value in enumerate(values)
        ]

    areas, legend, below = [], [], [0] * points
    for kind in kinds:
        above = [low + more for low, more in zip(below, curve.bytes_of[kind], strict=True)]
        corners = " ".join(line(above) + line(below)[::-1])
        areas.append(
            f'<polygon fill="{_COLOURS[kind]}" points="{corners}"><title>{kind.value}</title>'
            "</polygon>"
        )
        legend.append(f'<i style="background:{_COLOURS[kind]}"></i>{kind.value}')
        below = above
    if curve.reserved_bytes:
        corners = " ".join(line(curve.reserved_bytes))
        areas.append(f'<polyline fill="none" stroke="#000" points="{corners}"/>')
        legend.append('<i style="background:#000"></i>reserved')
    return (
        f"<p>{''.join(legend)}</p>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="bytes over time">'
        f"{''.join(areas)}</svg><p>Events from left to right; top: {format_bytes(highest)}.</p>"
    )


def _table(title: str, counts: Mapping[Any, int]) -> str:
    rows = [
        f'<tr><td class="bytes">{format_bytes(count)}</td><td><code>'
        f"{escape('?' if key is None else str(key) or '(the model itself)')}</code></td></tr>"
        for key, count in list(counts.items())[:_LONGEST_LIST]
    ]
    return f"<table><tr><th></th><th>{title}</th></tr>{''.join(rows)}</table>"
