"""The zoomable charts of memory: one Bokeh figure for each device.

The figures come without data. `assets/memory.js` fills the sources for the visible stretch of time
and sets the colours of light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .memory_curve import MemoryCurve, known_layers

_HEIGHT = 150


def make_charts(curves: Sequence[MemoryCurve]) -> list[dict[str, Any]]:
    """Return what `Bokeh.embed.embed_item` draws for each device.

    Needs bokeh.
    """
    from bokeh.embed import json_item
    from bokeh.models import ColumnDataSource, FixedTicker, Range1d
    from bokeh.plotting import figure

    layers = known_layers(curves)
    items = []
    for number in range(len(curves)):
        source = ColumnDataSource({name: [] for name in ("x", "zero", *layers)}, name="source")
        chart = figure(
            height=_HEIGHT,
            sizing_mode="stretch_width",
            toolbar_location=None,
            tools="",
            x_range=Range1d(0, 1),
            y_range=Range1d(0, 1),
            min_border_top=6,
            min_border_bottom=4,
            outline_line_color=None,
            border_line_color=None,
        )
        below = "zero"
        for layer in layers:  # each column holds the sum up to and with its layer
            chart.varea("x", below, layer, source=source)
            below = layer
        chart.line("x", layers[-1], source=source)
        chart.xaxis.visible = False
        chart.xgrid.visible = False
        chart.yaxis.ticker = FixedTicker(ticks=[])
        items.append(cast(dict[str, Any], json_item(chart, f"memory-{number}")))
    return items
