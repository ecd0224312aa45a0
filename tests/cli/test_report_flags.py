"""What `anyrig run --report`, `--trace` and `--json` hand to the ranks, and what they refuse."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import typer

from anyrig.cli.report_flags import ReportFlags, measure_options, measured_ranks
from anyrig.processes.failure import GroupFailure
from anyrig.processes.launcher import GroupResult
from anyrig.processes.rank_end import Ending, RankEnd
from anyrig.programs.program import Program
from anyrig.rehearsal.measured.options import MeasureOptions
from anyrig.rehearsal.reporting import Reporting

FLAGS = ("report", "trace", "json")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_is_measured_unless_asked() -> None:
    assert measure_options(ReportFlags(), is_watched=False) is None
    watched = measure_options(ReportFlags(), is_watched=True)
    assert watched is not None
    assert watched.reporting == Reporting()  # a summary


@pytest.mark.parametrize("flag", FLAGS)
def test_files_are_where_the_command_was_given(flag: str, folder: Path) -> None:
    before = time.time_ns()
    options = measure_options(ReportFlags(**{flag: Path("file")}), is_watched=False)
    assert options is not None
    assert before <= options.origin_ns <= time.time_ns()
    assert options.reporting == Reporting(**{flag: folder / "file"})
    assert options.folder is None


@pytest.mark.parametrize("flag", FLAGS)
def test_a_file_that_cannot_be_written_is_refused(flag: str, folder: Path) -> None:
    for path, why in (
        ("missing/file", "missing is not a folder; create it first"),
        (".", "is a folder; name a file"),
    ):
        with pytest.raises(typer.BadParameter, match=why) as refusal:
            ReportFlags(**{flag: Path(path)}).reporting()
        assert refusal.value.param_hint == f"--{flag}"


def test_an_order_has_all_options(folder: Path) -> None:
    for options in (
        MeasureOptions(17, None, Reporting(trace=folder / "t", report=folder / "r")),
        MeasureOptions(18, folder, Reporting(json=folder / "j")),
    ):
        kept = json.loads(json.dumps(options.order.options))
        assert MeasureOptions.of_order(kept) == options


def test_a_group_that_is_not_measured() -> None:
    with measured_ranks(None, Program("train.py", ()), 2) as (order, write_report):
        assert order is None
        write_report(GroupResult())


def test_a_group_whose_ranks_left_no_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = MeasureOptions(17, None, Reporting(json=folder / "facts.json"))
    end = RankEnd(
        1, "node0", 1, Ending.FAILED, None, "pkg.CustomError: a: b", "Traceback …",
        "/a/train.py:31 in step", None, None, False, None,
    )  # fmt: skip
    with measured_ranks(options, Program("train.py", ("--lr",)), 2) as (order, write_report):
        assert order is not None
        handed = order.options
        assert handed["origin_ns"] == 17
        assert Path(handed["folder"]).is_dir()
        write_report(GroupResult(GroupFailure((), (end,))))
    assert not Path(handed["folder"]).exists()
    facts = json.loads((folder / "facts.json").read_text())
    assert (facts["program"], facts["arguments"], facts["status"]) == ("train.py", ["--lr"], 1)
    assert facts["error"] == {"kind": "CustomError", "text": "a: b", "line": "train.py:31"}
    assert facts["measurement"] == {
        "steps_taken": 0,
        "notes": ["no record of rank 0, 1, which did not end by itself"],
    }
    assert "ended by   CustomError at train.py:31" in capsys.readouterr().err
