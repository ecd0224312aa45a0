"""The table and the page of a footprint, of moments that are written by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from anyrig.memory import DeviceFootprint, Footprint, Holding, Kind, Moment, SourceLine
from anyrig.memory.curve import Curve
from anyrig.memory.table import format_moment

MIB = 2**20
LINE = SourceLine("/a/train.py", 7, "train")
NO_CURVE = Curve([], [], {})


def moment(*holdings: Holding, phase: str | None = "forward", module: str | None = "0") -> Moment:
    count = sum(each.bytes for each in holdings)
    return Moment(count, count + 3 * MIB, None, phase, module, LINE, holdings)


def holding(
    count: int, kind: Kind, name: str | None, module: str | None, line: SourceLine | None = LINE
) -> Holding:
    return Holding(count * MIB, kind, name, module, line, None)


def footprint(peak: Moment, curve: Curve = NO_CURVE) -> Footprint:
    start, end = moment(holding(2, Kind.PARAMETERS, "w", "0")), moment()
    device = DeviceFootprint(torch.device("cuda", 0), start, peak, end, 5 * MIB, 2**30, curve)
    return Footprint((device,))


def rows(table: str) -> dict[str, list[str]]:
    """Return the cells of each row of the first table, by its kind."""
    lines = table.partition("at the peak")[0].splitlines()[1:]
    return {line[:20].strip(): re.findall(r"\S+ [KM]?i?B|0", line[20:]) for line in lines}


def test_the_table_has_each_kind_at_each_moment() -> None:
    peak = moment(holding(4, Kind.PARAMETERS, "w", "0"), holding(1, Kind.BATCH, "x", None))
    table = footprint(peak).table()
    head, columns, *_ = table.splitlines()
    assert head == "cuda:0: peak 5.00 MiB of 1.00 GiB, in the forward of 0 at train.py:7 in train"
    assert columns.split() == ["kind", "start", "peak", "end"]
    found = rows(table)
    assert found["parameters"] == ["2.00 MiB", "4.00 MiB"]
    assert found["batch"] == ["1.00 MiB"]
    assert found["cached"] == ["3.00 MiB"] * 3
    assert found["outside PyTorch"] == ["5.00 MiB"]
    outside = next(line for line in table.splitlines() if line.startswith("outside PyTorch"))
    assert len(outside.rstrip()) == len(columns.rstrip())  # in the last column, the end
    assert "gradients" not in found


@pytest.mark.parametrize(
    ("phase", "module", "where"),
    [
        ("outside", None, ", at train.py:7 in train"),
        ("backward", "", ", in the backward at train.py:7 in train"),
        (None, None, ", at train.py:7 in train"),
    ],
)
def test_the_first_line_says_where_the_peak_was(
    phase: str | None, module: str | None, where: str
) -> None:
    peak = moment(holding(4, Kind.PARAMETERS, "w", "0"), phase=phase, module=module)
    head = footprint(peak).table().splitlines()[0]
    assert head == f"cuda:0: peak 4.00 MiB of 1.00 GiB{where}"
    nowhere = footprint(replace(peak, line=None, phase=None, module=None))
    assert nowhere.table().splitlines()[0] == "cuda:0: peak 4.00 MiB of 1.00 GiB"


def test_the_table_lists_the_eight_largest_and_adds_up_the_others() -> None:
    peak = moment(*(holding(20 - n, Kind.OTHER, f"t{n}", f"block{n}") for n in range(11)))
    table = footprint(peak).table()
    names = table.partition("name at the peak")[2].partition("line at the peak")[0]
    assert re.findall(r"t\d+", names) == [f"t{number}" for number in range(8)]
    assert "33.00 MiB  (3 others)" in names
    modules = table.partition("module at the peak")[2].partition("name at the peak")[0]
    assert re.findall(r"block\d+", modules) == [f"block{number}" for number in range(8)]
    page = footprint(peak).html()
    assert all(f"block{number}<" in page for number in range(11))


def test_what_has_no_module_name_or_line() -> None:
    peak = moment(
        holding(3, Kind.OTHER, None, None, None),
        holding(2, Kind.ACTIVATIONS, None, ""),
        holding(1, Kind.OTHER, "x", "head"),
    )
    text = format_moment(peak)
    assert re.search(r"3\.00 MiB +\(no module\)", text)
    assert re.search(r"2\.00 MiB +\(the model itself\)", text)
    assert re.search(r"3\.00 MiB +\(before tracking\)", text)
    assert "parameters" not in text
    names = text.partition("name")[2].partition("line")[0]
    assert re.findall(r"[\d.]+ MiB", names) == ["1.00 MiB"]  # of those with a name
    page = footprint(peak).html()
    assert "<code>?</code>" in page
    assert "<code>(the model itself)</code>" in page


def test_a_table_without_known_modules_names_or_lines_has_the_kinds_only() -> None:
    text = format_moment(moment(holding(3, Kind.OTHER, None, None, None)))
    assert "other tensors" in text
    assert not re.search(r"module|name|line", text)


def test_a_page_lists_twenty_of_each() -> None:
    peak = moment(*(holding(30 - n, Kind.OTHER, f"t{n}.", None) for n in range(22)))
    page = footprint(peak).html()
    assert re.findall(r">t(\d+)\.<", page) == [str(number) for number in range(20)]


def test_nothing_was_held() -> None:
    assert Footprint().table() == "No device held memory.\n"
    assert "No device held memory." in Footprint().html()
    empty = footprint(moment()).html()
    assert "Nothing was allocated or freed." in empty
    assert Footprint().peak_bytes == 0


def test_the_chart_stacks_the_kinds_below_what_is_reserved() -> None:
    bytes_of = {Kind.BATCH: [0, 10, 10], Kind.PARAMETERS: [20, 20, 20], Kind.GRADIENTS: [0] * 3}
    page = footprint(moment(), Curve([0.0, 1.0, 2.0], [40, 40, 40], bytes_of)).html()
    drawn = re.findall(r'points="([^"]*)"(?:><title>([^<]*))?', page)
    assert drawn == [
        ("0.0,160.0 480.0,160.0 960.0,160.0 960.0,320.0 480.0,320.0 0.0,320.0", "parameters"),
        ("0.0,160.0 480.0,80.0 960.0,80.0 960.0,160.0 480.0,160.0 0.0,160.0", "batch"),
        ("0.0,0.0 480.0,0.0 960.0,0.0", ""),
    ]
    legend = re.findall(r"</i>([^<]*)", page)
    assert legend == ["parameters", "batch", "reserved"]
    assert "top: 40 B." in page
