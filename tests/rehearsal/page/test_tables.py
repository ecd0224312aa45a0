"""The figures, tables and tiles of a page, from facts that are written by hand."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from example_facts import make_facts

from anyrig.rehearsal.page.document import format_page
from anyrig.rehearsal.page.quantities import (
    format_memory,
    format_number,
    format_seconds,
    format_share,
)
from anyrig.rehearsal.page.summary import describe_origin, format_findings, format_summary
from anyrig.rehearsal.page.tables import list_devices, list_path, list_steps, list_totals
from anyrig.rehearsal.page.totals import add_up

GIB = 2**30


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0, "0 s"),
        (1.0, "1.00 s"),
        (0.9994, "999 ms"),
        (0.01234, "12.3 ms"),
        (2.5e-6, "2.50 µs"),
        (99.96e-9, "100 ns"),
        (1234.5, "1\u202f234 s"),
    ],
)
def test_durations_have_three_digits(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


def test_numbers_shares_and_memory() -> None:
    numbers = (0.126, 9.994, 9.996, 99.94, 99.96, 12345.6, None)
    assert [*map(format_number, numbers)] == [
        *("0.13", "9.99", "10.0", "99.9", "100", "12\u202f346", "?")
    ]
    assert format_share(0.126) == "13\u00a0%"
    assert format_share(None) == "?"
    assert format_memory(GIB, 4 * GIB) == "1.00 GiB of 4.00 GiB (25\u00a0%)"
    assert format_memory(GIB, None) == "1.00 GiB"


def cells(table: str) -> list[list[str]]:
    """Return the texts of a table's rows, the titles first."""
    found = re.findall(r"<tr>(.*?)</tr>", table)
    return [
        [unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in found
    ]


def segment(kind: str, seconds: float, module: int | None = None, line: int | None = None) -> Any:
    return {
        "kind": kind, "seconds": seconds, "track": None, "name": None, "module": module,
        "line": line,
    }  # fmt: skip


def step(number: int, begin: float, end: float, *path: Any, **more: Any) -> dict[str, Any]:
    return {
        "number": number, "is_first": number == 1, "begin_seconds": begin, "end_seconds": end,
        "samples": None, "waits": 0, "loader_wall_seconds": 0.0, "path": [*path], **more,
    }  # fmt: skip


TEXTS = ["kernel", "copy", "mm", "blocks.0.up", "blocks.1.up", "head", "train.py:3"]


def facts_of(*steps: dict[str, Any], typical: tuple[int, ...] = ()) -> dict[str, Any]:
    facts = make_facts(devices=1, steps=1, layers=1)
    of_steps = {"seconds": 1.0, "samples_per_second": None, "of_steps": [*typical]}
    return facts | {
        "texts": TEXTS,
        "steps": [*steps],
        "typical_step": of_steps if typical else None,
        "step_interval": None,
    }


def test_the_steps_have_the_columns_that_are_known() -> None:
    first = step(1, 0.0, 4.0, segment("host", 3.0), segment("kernel", 1.0))
    second = step(2, 4.0, 6.0, segment("kernel", 2.0), samples=32, waits=3)
    assert cells(list_steps(facts_of(first, second))) == [
        ["step", "duration", "samples/s", "waits for a device", "path: kernels", "path: host"],
        ["1 (first)", "4.00 s", "?", "0", "1.00 s", "3.00 s"],
        ["2", "2.00 s", "16.0", "3", "2.00 s", "0 s"],
    ]
    loaded = step(2, 4.0, 6.0, loader_wall_seconds=0.25)
    assert cells(list_steps(facts_of(loaded))) == [
        ["step", "duration", "waits for a device", "loading here"],
        ["2", "2.00 s", "0", "250 ms"],
    ]


def test_a_path_adds_up_all_layers_and_is_the_mean_of_the_steps() -> None:
    steps = [
        step(2, 0, 4, segment("kernel", 1.0, 3, 6), segment("kernel", 2.0, 4, 6)),
        step(3, 4, 8, segment("kernel", 3.0, 5), segment("wait", 0.0), segment("copy", 2.0)),
    ]
    table = list_path(facts_of(*steps), steps)
    assert "Critical path of a typical step; * is any number" in table
    rows = cells(table)
    assert rows[0] == ["per step", "share", "kind", "module", "line"]
    assert sorted(rows[1:3]) == [
        ["1.50 s", "38\u00a0%", "kernels", "blocks.*.up", "train.py:3"],
        ["1.50 s", "38\u00a0%", "kernels", "head", ""],
    ]
    assert rows[3:] == [["1.00 s", "25\u00a0%", "copies", "", ""]]
    assert list_path(facts_of(), []) == ""


def intervals(*rows: tuple[float, float, int, int, int]) -> dict[str, list[Any]]:
    """Return columns of intervals (begin, seconds, kind, module, bytes) of the operator mm."""
    begins, seconds, kinds, modules, moved = map(list, zip(*rows, strict=True))
    same = {"track": [0] * len(rows), "name": [2] * len(rows), "line": [6] * len(rows)}
    same["flow"] = [-1] * len(rows)
    return same | {
        "begin_seconds": begins, "seconds": seconds, "kind": kinds, "module": modules,
        "bytes": moved,
    }  # fmt: skip


def test_totals_count_all_intervals_and_those_of_the_typical_steps() -> None:
    steps = [step(1, 0.0, 4.0), step(2, 4.0, 6.0), step(3, 6.0, 8.0)]
    facts = facts_of(*steps, typical=(2, 3)) | {
        "intervals": intervals(
            (0.0, 4.0, 0, 3, 8 * GIB),
            (4.0, 1.0, 0, 3, -1),
            (6.0, 0.5, 0, 4, GIB),
            (8.0, 9.0, 1, -1, -1),  # after the last step
        )
    }
    totals = add_up(facts)
    assert [(one.kind, one.count, one.seconds, one.bytes) for one in totals] == [
        ("copy", 1, 9.0, 0),
        ("kernel", 2, 5.0, 8 * GIB),
        ("kernel", 1, 0.5, GIB),
    ]
    assert [one.typical_seconds for one in totals] == [0.0, 1.0, 0.5]
    assert cells(list_totals(facts, totals)) == [
        ["per step", "in all", "number", "moved", "kind", "operator", "module", "line"],
        ["0 s", "9.00 s", "1", "", "copies", "mm", "", "train.py:3"],
        ["750 ms", "5.50 s", "3", "9.00 GiB", "kernels", "mm", "blocks.*.up", "train.py:3"],
    ]


def test_the_forty_longest_are_listed() -> None:
    names = [f"operator {chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(42)]
    columns = intervals(*((float(n), 1.0 + n, 0, -1, -1) for n in range(42)))
    columns["name"] = [len(TEXTS) + n for n in range(42)]
    facts = facts_of() | {"texts": [*TEXTS, *names], "intervals": columns}
    table = list_totals(facts, add_up(facts))
    assert "Where the time goes (the longest 40 of 42)" in table
    shown = [row[5] for row in cells(table)[1:]]
    assert shown == names[:1:-1]
    assert cells(table)[1][0] == "?"  # without typical steps


def device(index: int, rank: int, busy: float | None, total: int) -> dict[str, Any]:
    peak = {f"{part}_bytes": None for part in ("workspace", "context", "collective", "cached")}
    return {
        "index": index, "rank": rank, "gpu": "T4", "capacity_bytes": 16 * GIB,
        "busy_share": busy, "waiting_share": busy, "idle_share": None,
        "peak": {
            **peak, "total_bytes": total, "tensor_bytes": GIB, "headroom_bytes": 0,
            "most_bytes": 5 * GIB,
        },
    }  # fmt: skip


def tiles(facts: dict[str, Any]) -> dict[str, tuple[str, str]]:
    found = re.findall(
        r"<dt>(.*?)</dt><dd>(.*?)<small>(.*?)</small>", format_summary(facts, facts["steps"])
    )
    return {title: (value, unescape(note)) for title, value, note in found}


def test_the_tiles() -> None:
    devices = [device(0, 0, 0.2, 4 * GIB), device(0, 1, 0.6, 8 * GIB), device(1, 1, None, GIB)]
    findings = [
        {"saved_seconds": None, "title": "a"},
        {"saved_seconds": 0.25, "title": "b"},
        {"saved_seconds": 0.125, "title": "c"},
    ]
    steps = [step(number, number, number + 1.0) for number in range(1, 9)]
    facts = facts_of(*steps, typical=(2, 3, 4, 5, 6)) | {"devices": devices, "findings": findings}
    facts["typical_step"]["samples_per_second"] = 1234.4
    shown = tiles(facts)
    assert shown["typical step"] == ("1.00 s", "of steps 2, 3, 4, 5, 6")
    assert shown["throughput"] == ("1\u202f234/s", "samples")
    assert shown["GPUs busy"] == ("20 to 60\u00a0%", "27\u00a0% waiting for other devices")
    assert shown["memory peak"] == ("8.00 GiB", "rank 1 cuda:0, of 16.00 GiB (50\u00a0%)")
    assert shown["largest saving"] == ("250 ms", "per step: b")
    assert shown["steps"] == ("8", "3 devices")
    longer = facts_of(*steps, typical=(2, 3, 4, 5, 6, 7)) | {"devices": [], "findings": []}
    assert tiles(longer)["typical step"] == ("1.00 s", "of 6 steps")
    assert tiles(longer).keys() == {"typical step", "steps"}


def test_the_bar_has_the_mean_of_each_kind() -> None:
    steps = [
        step(2, 0, 4, segment("kernel", 3.0), segment("host", 1.0)),
        step(3, 4, 8, segment("kernel", 3.0), segment("copy", 1.0)),
    ]
    bar = format_summary(facts_of(*steps), steps)
    assert re.findall(r'class="(\w+)" style="width:([\d.]+)%', bar) == [
        *(("kernel", "75.00"), ("copy", "12.50"), ("host", "12.50"))
    ]
    assert "kernels 3.00 s (75\u00a0%)" in bar
    assert "host 500 ms (12\u00a0%)" in bar


def test_the_finding_that_saves_most_is_first() -> None:
    savings = {
        "R1": (0.1, None),
        "R2": (None, 5),
        "R3": (0.3, None),
        "R4": (None, 9),
        "R5": (0.1, 7),
    }
    facts = facts_of() | {
        "findings": [
            {
                "code": code, "title": "", "line": None, "saved_seconds": seconds,
                "saved_bytes": count, "text": "", "remedy": "",
            }
            for code, (seconds, count) in savings.items()
        ]
    }  # fmt: skip
    shown = format_findings(facts)
    assert re.findall(r'class="code">(\w+)', shown) == ["R3", "R5", "R1", "R4", "R2"]
    assert "saves 100 ms per step" in shown
    assert "saves 9 B" in shown
    assert format_findings(facts | {"findings": []}) == "<p>No findings.</p>"


def test_devices_have_what_is_known() -> None:
    facts = facts_of() | {"devices": [device(1, 0, 0.2, 4 * GIB)]}
    titles, row = cells(list_devices(facts))
    shown = dict(zip(titles, row, strict=True))
    assert (shown["device"], shown["rank"], shown["GPU"]) == ("cuda:1", "0", "T4")
    assert (shown["busy"], shown["idle"]) == ("20\u00a0%", "not measured")
    assert (shown["capacity"], shown["peak"]) == ("16.00 GiB", "4.00 GiB")
    assert shown["at most"] == "5.00 GiB"
    assert (shown["tensors"], shown["cached"]) == ("1.00 GiB", "not measured")
    assert shown["headroom"] == "0 B"


def test_without_typical_steps_the_last_step_is_shown() -> None:
    facts = make_facts(devices=1, steps=3, layers=1) | {"typical_step": None}
    assert "Critical path of a typical step" in format_page(facts)
    facts["steps"][-1]["path"] = []
    assert "Critical path of a typical step" not in format_page(facts)


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"shape_only": False}, ""),
        ({"shape_only": True}, " --shape-only"),
        ({"shape_only": True, "assume_values": True}, " --assume-values"),
        (
            {"shape_only": False, "clock": {"host_launch_seconds": 8e-6, "libraries": "torch=1.7"}},
            " --host-launch 8us --libraries torch=1.7",
        ),
        ({"shape_only": False, "clock": {"host_launch_seconds": None, "libraries": None}}, ""),
    ],
)
def test_the_command_has_the_flags_on_which_the_figures_depend(
    changes: dict[str, Any], flags: str
) -> None:
    command, *rest = describe_origin({**make_facts(), **changes}).split(" · ")
    assert command == f"anyrig rehearse --rig 2xA100-80GB{flags} train.py --batch 64"
    values = "shapes only, no values computed" if changes["shape_only"] else "all values computed"
    assert rest[0] == values
