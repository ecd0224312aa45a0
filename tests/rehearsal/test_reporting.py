"""Where a rehearsal writes, what it refuses to write to, and which function marks its steps."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from anyrig.errors import ReportError
from anyrig.rehearsal.facts import DeviceFacts, Facts, PeakMemory
from anyrig.rehearsal.reporting import Reporting, check_file
from anyrig.rehearsal.step_marker import StepMarker, check_name

ABOUT = Facts("train.py", (), "T4", False, "2.13.0", "0.1.0")
PEAK = PeakMemory(1, 1, 0, 0, 0, 0, 1)
USED = replace(ABOUT, devices=(DeviceFacts(0, 0, "T4", 2, PEAK, 0.0, 0.0, 1.0),))


def test_the_summary_is_of_programs_that_used_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    Reporting().write(ABOUT)
    Reporting(quiet=True).write(USED)
    assert capsys.readouterr() == ("", "")
    Reporting().write(USED)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("anyrig: train.py on virtual GPUs T4\n")


def test_each_file_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    names = ("json", "trace", "report")
    files = {name: tmp_path / f"out.{name}" for name in names}
    Reporting(quiet=True, **files).write(USED)
    assert json.loads(files["json"].read_text()) == json.loads(json.dumps(USED.as_json()))
    assert "traceEvents" in json.loads(files["trace"].read_text())
    assert files["report"].read_text().startswith("<!doctype html>")
    for name in names:
        assert Reporting(**{name: files[name]}).has_files
    assert not Reporting(steps=3).has_files
    assert Reporting(quiet=True, steps=3).is_wanted
    assert Reporting().is_wanted


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("json", "trace", "report"):
        with pytest.raises(ReportError, match=r"folder' cannot be written: Is a directory"):
            Reporting(quiet=True, **{name: tmp_path / "folder"}).write(USED)


def test_where_a_report_can_be_written(tmp_path: Path) -> None:
    check_file(tmp_path / "new.json")
    (tmp_path / "old.json").write_text("")
    check_file(tmp_path / "old.json")
    with pytest.raises(ReportError, match="is a folder; name a file"):
        check_file(tmp_path)
    with pytest.raises(ReportError, match="missing is not a folder; create it first"):
        check_file(tmp_path / "missing" / "new.json")
    with pytest.raises(ReportError, match="cannot be the name of a file"):
        check_file(tmp_path / ("x" * 300))
    with pytest.raises(ReportError, match="cannot be the name of a file"):
        check_file(tmp_path / "old.json" / "new.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReportError, match="is not a file; name a file"):
        check_file(tmp_path / "pipe")


def test_a_marked_function_may_be_nested_in_a_block_or_a_coroutine() -> None:
    source = "if True:\n    async def step(): return 3\nclass A:\n    class B:\n        pass\n"
    calls: list[int] = []
    marker = StepMarker("step", lambda: calls.append(1))
    names = marker.names()
    exec(marker.compile(source, "train.py"), names)
    with pytest.raises(StopIteration) as ended:
        names["step"]().send(None)
    assert (ended.value.value, calls) == (3, [1])


def test_a_call_that_raises_ends_no_step_and_ten_names_are_shown() -> None:
    source = "".join(f"def f{n}(): raise KeyError\n" for n in range(11))
    calls: list[int] = []
    marker = StepMarker("f0", lambda: calls.append(1))
    names = marker.names()
    exec(marker.compile(source, "train.py"), names)
    with pytest.raises(KeyError):
        names["f0"]()
    assert calls == []
    with pytest.raises(ReportError, match=r"are f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, …$"):
        StepMarker("step", calls.clear).compile(source, "train.py")
    with pytest.raises(ReportError, match=r"could be steps; it defines none$"):
        StepMarker("step", calls.clear).compile("", "train.py")
    check_name("train_step")
    check_name("Trainer.train_step")
