"""The formats in which a footprint is written: tables, JSON, pages, snapshots, sums and curves."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path

import pytest
import torch
from footprint_of_device import on
from torch.cuda import _memory_viz
from trainings import prepare

from anyrig.errors import MemoryTrackingError
from anyrig.memory import Footprint, Kind, SourceLine, track
from anyrig.memory.moment import Holding, Moment
from anyrig.memory.table import format_moment

CUDA = pytest.param("cuda", marks=pytest.mark.gpus(1))
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


def test_a_page_shows_names_with_brackets() -> None:
    make = lambda: torch.ones(2**20)  # noqa: E731 (for the name of its function)
    with track() as footprint:
        kept = make()
    page = footprint.html()
    assert kept.nbytes == 2**22
    assert "in &lt;lambda&gt;" in page
    assert "<lambda>" not in page


def test_saved_files_have_the_mode_of_new_files_or_keep_their_own(tmp_path: Path) -> None:
    with track() as footprint:
        pass
    before = os.umask(0o027)
    try:
        new = footprint.save(tmp_path / "new.json")
    finally:
        os.umask(before)
    assert new.stat().st_mode & 0o777 == 0o640
    new.chmod(0o604)
    footprint.save(new)
    assert new.stat().st_mode & 0o777 == 0o604


def test_a_file_that_cannot_be_replaced_leaves_no_other_one(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(IsADirectoryError):
        Footprint().save(tmp_path / "folder.json")
    assert [each.name for each in tmp_path.iterdir()] == ["folder.json"]


@DEVICES
def test_table_json_and_page_agree(device: str, tmp_path: Path) -> None:
    training = prepare("mlp", "adamw", "plain", device)
    with track() as footprint:
        training.step()
    found = on(device, footprint)
    table = footprint.table()
    assert all(len(line) <= 80 for line in table.splitlines() if "peak" not in line)
    assert "optimizer state" in table
    assert ".weight.grad" in table
    facts = json.loads(footprint.json())
    (of_device,) = [each for each in facts["devices"] if each["device"] == str(found.device)]
    assert (of_device["total_bytes"], of_device["outside_bytes"]) == (
        *(found.total_bytes, found.outside_bytes),
    )
    for name in ("start", "peak", "end"):
        moment, written = getattr(found, name), of_device[name]
        for key in ("allocated_bytes", "reserved_bytes", "phase", "module"):
            assert written[key] == getattr(moment, key)
        assert written["line"] == (None if moment.line is None else str(moment.line))
        assert written["bytes_by_kind"] == {
            kind.value: count for kind, count in moment.by_kind().items()
        }
        for counts in ("module", "name", "line"):
            by_text = {
                "?" if key is None else str(key): count
                for key, count in getattr(moment, f"by_{counts}")().items()
            }
            assert written[f"bytes_by_{counts}"] == by_text
    assert found.start.by_kind() != found.peak.by_kind()
    assert found.end.phase != found.peak.phase or found.end.by_line() != found.peak.by_line()
    page = footprint.save(tmp_path / "footprint.html").read_text()
    assert "<polygon" in page
    assert "optimizer state" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert footprint.save(tmp_path / "footprint.txt").read_text() == table
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["footprint.html", "footprint.txt"]
    with pytest.raises(MemoryTrackingError, match=r"'footprint\.doc'"):
        footprint.save(tmp_path / "footprint.doc")


def rows_of(*names: str | None) -> list[list[str]]:
    holdings = [
        Holding(2**20 * (number + 1), Kind.ACTIVATIONS, None, name, None, "forward")
        for number, name in enumerate(names)
    ]
    count = sum(each.bytes for each in holdings)
    text = format_moment(Moment(count, count, None, "forward", None, None, tuple(holdings)))
    lines = [line.split(maxsplit=2) for line in text.partition("module\n")[2].splitlines()]
    return [[f"{size} {unit}", name] for size, unit, name in lines[: len(names)] if unit == "MiB"]


def test_equal_layers_are_one_row_where_not_all_would_be_listed() -> None:
    layers = [f"layers.{number}.up" for number in range(8)]
    assert rows_of("head", *layers, None) == [
        ["44.00 MiB", "layers.*.up (8 of them)"],
        ["10.00 MiB", "(no module)"],
        ["1.00 MiB", "head"],
    ]
    assert rows_of(*layers)[0] == ["8.00 MiB", "layers.7.up"]


@pytest.mark.gpus(1)
def test_pytorchs_viewer_opens_the_snapshot(tmp_path: Path) -> None:
    with track() as footprint:
        kept = torch.ones(2**20, device="cuda")
    path = footprint.save(tmp_path / "snapshot.pickle")
    snapshot = pickle.loads(path.read_bytes())
    assert "html" in _memory_viz.trace_plot(snapshot)
    allocated = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
    (entry,) = [e for e in allocated if e["addr"] == kept.data_ptr()]
    assert entry["frames"][0]["filename"] == __file__
    assert _memory_viz.segment_plot(snapshot)


@pytest.mark.gpus(1)
def test_the_snapshot_of_steps_is_that_of_the_highest_one(tmp_path: Path) -> None:
    training = prepare("mlp", "sgd", "plain", "cuda")
    with track(every="step") as footprint:
        for number in range(3):
            if number == 0:
                address = torch.empty(2**24, device="cuda").data_ptr()
            training.step()
    snapshot = pickle.loads(footprint.save(tmp_path / "snapshot.pickle").read_bytes())
    allocated = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
    assert (address, 2**26) in {(entry["addr"], entry["size"]) for entry in allocated}


def test_a_snapshot_needs_a_cuda_device(tmp_path: Path) -> None:
    with pytest.raises(MemoryTrackingError, match="needs a CUDA device"):
        Footprint().save(tmp_path / "snapshot.pickle")
    assert list(tmp_path.iterdir()) == []


def test_sums_are_in_the_order_of_their_sizes() -> None:
    sizes = {"a": (5,), "b": (4, 3), "c": (1, 2, 3)}
    moment = Moment(
        *(18, None, None, None, None, None),
        tuple(
            Holding(size, Kind.OTHER, name, name, None, None)
            for name, of_name in sizes.items()
            for size in of_name
        ),
    )
    expected = [("b", 7), ("c", 6), ("a", 5)]
    assert [*moment.by_name().items()] == [*moment.by_module().items()] == expected


def test_sums_of_kinds_are_in_the_order_of_their_sizes_and_other_sums_may_be_of_one_kind() -> None:
    kinds = (Kind.BATCH, Kind.PARAMETERS, Kind.BATCH)
    lines = [SourceLine("train.py", number, "train") for number in (1, 2, 3)]
    held = [
        Holding(size, kind, f"of {size}", f"in {size}", line, None)
        for size, kind, line in zip((4, 5, 3), kinds, lines, strict=True)
    ]
    moment = Moment(12, 18, None, None, None, None, tuple(held))
    assert [*moment.by_kind().items()] == [
        (Kind.BATCH, 7), (Kind.CACHED, 6), (Kind.PARAMETERS, 5),
    ]  # fmt: skip
    assert moment.by_name(Kind.BATCH) == {"of 4": 4, "of 3": 3}
    assert moment.by_module(Kind.PARAMETERS) == {"in 5": 5}
    assert moment.by_line(Kind.BATCH) == {lines[0]: 4, lines[2]: 3}
    assert moment.by_name(Kind.GRADIENTS) == {}
    on_the_cpu = Moment(12, None, None, None, None, None, tuple(held))
    assert on_the_cpu.by_kind() == {Kind.BATCH: 7, Kind.PARAMETERS: 5}


def test_the_curve_keeps_the_highest_point() -> None:
    with track() as footprint:
        for size in (*range(1, 1500), 5000, *range(1, 1500)):
            torch.ones(size)
    curve = on("cpu", footprint).curve
    totals = [sum(values) for values in zip(*curve.bytes_of.values(), strict=True)]
    assert len(totals) < 800
    assert max(totals) == on("cpu", footprint).peak.allocated_bytes
    assert curve.seconds[-1] is None or curve.seconds[-1] <= time.time()


def test_a_curve_begins_with_the_first_event_and_reserves_nothing_on_the_cpu() -> None:
    with track() as footprint:
        kept = torch.ones(1000)
    curve = on("cpu", footprint).curve
    assert curve.seconds[0] == 0.0
    assert curve.reserved_bytes == []
    assert sum(values[-1] for values in curve.bytes_of.values()) == (
        on("cpu", footprint).end.allocated_bytes
    )
    assert kept.nbytes == 4000
