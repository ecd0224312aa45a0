"""Lanes, merging and columns, on small examples."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anyrig.rehearsal.page.columns import pack
from anyrig.rehearsal.page.lanes import Lane, arrange
from anyrig.rehearsal.page.memory_picture import draw_memory
from anyrig.rehearsal.page.merging import choose_limit_ns, merge_short


def facts_of(*intervals: tuple[int, float, float, str]) -> dict[str, Any]:
    """Facts with intervals of (track, begin and duration in nanoseconds, kind)."""
    kinds = ["kernel", "copy"]
    columns: dict[str, Any] = {
        "track": [track for track, *_ in intervals],
        "begin_seconds": [begin * 1e-9 for _, begin, _, _ in intervals],
        "seconds": [seconds * 1e-9 for _, _, seconds, _ in intervals],
        "kind": [kinds.index(kind) for *_, kind in intervals],
    }
    columns |= {name: [0] * len(intervals) for name in ("name", "module", "line", "bytes", "flow")}
    return {
        "texts": kinds,
        "tracks": [{"rank": rank, "device": None, "stream": None} for rank in (0, 1)],
        "intervals": columns,
        "devices": [],
    }


def shape(lanes: list[Lane]) -> list[tuple[int, list[tuple[int, int]]]]:
    return [(lane.track, list(zip(lane.begin_ns, lane.end_ns, strict=True))) for lane in lanes]


def test_what_an_interval_holds_lies_below_it() -> None:
    lanes = arrange(
        facts_of(
            (0, 0, 10, "kernel"), (0, 0, 100, "kernel"), (0, 20, 5, "kernel"), (0, 100, 9, "copy")
        ),
        0.0,
    )
    assert shape(lanes) == [(0, [(0, 100), (100, 109)]), (0, [(0, 10), (20, 25)]), (1, [])]


def test_short_neighbours_of_one_kind_merge() -> None:
    [lane, _] = arrange(
        facts_of(
            (0, 0, 4, "kernel"),
            (0, 5, 4, "kernel"),
            (0, 9, 4, "copy"),
            (0, 13, 50, "kernel"),
            (0, 63, 4, "kernel"),
            (0, 90, 4, "kernel"),
        ),
        0.0,
    )
    merged = merge_short(lane, 10)
    assert shape([merged]) == [(0, [(0, 9), (9, 13), (13, 63), (63, 67), (90, 94)])]
    assert merged.count == [2, 1, 1, 1, 1]
    assert merged.gap_ns == [1, 0, 0, 0, 0]
    assert merged.bytes == [0, 0, 0, 0, 0]


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 60))
def test_merging_by_the_chosen_limit_keeps_all_time(durations: list[int], most: int) -> None:
    begin, intervals = 0, []
    for duration in durations:
        intervals.append((0, begin, duration, "kernel"))
        begin += duration
    [lane, _] = arrange(facts_of(*intervals), 0.0)
    merged = merge_short(lane, choose_limit_ns([lane], most))
    assert sum(merged.count) == len(durations)
    assert merged.end_ns[-1] == begin
    assert len(merged) <= len(lane)


@given(st.lists(st.integers(0, 2**53 - 1)))
def test_columns_hold_numbers_exactly(numbers: list[int]) -> None:
    column = pack(numbers)
    stored = [
        sum(
            column.planes[plane * column.length + row] << 8 * plane for plane in range(column.width)
        )
        for row in range(column.length)
    ]
    assert stored == numbers


def test_a_picture_of_many_points_keeps_the_peak() -> None:
    heights = [7 * index % 100 for index in range(1000)]
    heights[503] = 5000
    memory = {"device": 0, "seconds": list(range(1000)), "tensor_bytes": heights}
    memory |= {f"{name}_bytes": [1] * 1000 for name in ("context", "workspace", "cached")}
    picture = draw_memory(memory, "cuda:0", 0, 1000)
    assert "cuda:0, at most 4.89 KiB" in picture
    assert picture.count(",") < 4 * 2 * 2 * 500
    # On top of the picture, from the time of the peak to that of the next point.
    assert f"{144 + 816 * 0.503:.1f},4.0 " in picture


def test_a_rank_s_hosts_come_before_its_streams() -> None:
    facts = facts_of()
    places = [(1, None, None), (0, 0, 7), (0, 0, 0), (0, None, None), (0, 1, 0), (0, None, None)]
    facts["tracks"] = [
        dict(zip(("rank", "device", "stream"), place, strict=True)) for place in places
    ]
    assert [lane.track for lane in arrange(facts, 0.0)] == [3, 5, 2, 1, 4, 0]
