"""Pictures of timelines: what docstrings show, and the width."""

from __future__ import annotations

import inspect
import textwrap

import pytest

from anyrig.parallel.engines.pipeline.schedules import picture
from anyrig.parallel.engines.pipeline.schedules.forward import forward
from anyrig.parallel.engines.pipeline.schedules.gpipe import gpipe
from anyrig.parallel.engines.pipeline.schedules.interleaved import interleaved
from anyrig.parallel.engines.pipeline.schedules.named import SCHEDULE_NAMES, make_schedule
from anyrig.parallel.engines.pipeline.schedules.one_forward_one_backward import (
    one_forward_one_backward,
)
from anyrig.parallel.engines.pipeline.schedules.picture import draw
from anyrig.parallel.engines.pipeline.schedules.schedule import Schedule
from anyrig.parallel.engines.pipeline.schedules.timeline import simulate
from anyrig.parallel.engines.pipeline.schedules.zero_bubble import zero_bubble
from anyrig.parallel.engines.pipeline.schedules.zero_bubble_few import zero_bubble_few
from anyrig.parallel.engines.pipeline.schedules.zero_bubble_h2 import zero_bubble_h2
from anyrig.parallel.engines.pipeline.schedules.zero_bubble_v import zero_bubble_v


@pytest.mark.parametrize(
    ("function", "schedule"),
    [
        (gpipe, gpipe(3, 4)),
        (forward, forward(3, 4)),
        (one_forward_one_backward, one_forward_one_backward(3, 4)),
        (picture.draw, one_forward_one_backward(3, 4)),
        (interleaved, interleaved(2, 3, 2)),
        (zero_bubble, zero_bubble(3, 4)),
        (zero_bubble_h2, zero_bubble_h2(2, 5)),
        (zero_bubble_few, zero_bubble_few(2, 8)),
        (zero_bubble_v, zero_bubble_v(2, 4)),
    ],
)
def test_docstrings_show_what_is_drawn(function: object, schedule: Schedule) -> None:
    shown = textwrap.indent(draw(simulate(schedule)), "    ")
    assert f"::\n\n{shown}\n" in f"{inspect.getdoc(function)}\n"


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_rows_are_equally_wide_and_fit(name: str) -> None:
    for n in (1, 2, 4, 8):
        for m in (1, 3, 10, 11, 32):
            rows = draw(simulate(make_schedule(name, n, m))).split("\n")
            assert len(rows) == n
            assert len({len(row) for row in rows}) == 1
            assert len(rows[0]) <= 80


def test_too_wide_for_numbers_leaves_the_letters() -> None:
    timeline = simulate(make_schedule("zero-bubble", 2, 11))
    wide = draw(timeline, ["cuda:0", "cuda:1"], columns=120)
    assert wide.startswith("cuda:0  F0-F1-...B0----F2-B1----")
    assert draw(timeline, ["cuda:0", "cuda:1"], columns=60) == (
        "cuda:0  FF.BBFBBFBBFBBFBBFBBFBBFBBFBBFBBBB\ncuda:1  .FIFIWFIWFIWFIWFIWFIWFIWFIWFIWFIWW"
    )


def test_much_too_wide_is_compressed() -> None:
    rows = draw(simulate(make_schedule("gpipe", 2, 32)), columns=31).split("\n")
    assert [len(row) for row in rows] == [31, 31]
    assert rows[0] == "device 0  FFFFFFFBBBBBBBBBBBBBB"


def test_tasks_of_no_duration() -> None:
    timeline = simulate(make_schedule("1f1b", 2, 2), lambda task: 0.0)
    assert draw(timeline) == "device 0  \ndevice 1  "
