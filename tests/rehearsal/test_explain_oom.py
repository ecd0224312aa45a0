"""A script that runs out of memory ends with one report, which names the reason and the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from anyrig.memory import explain_oom, track
from anyrig.rehearsal.out_of_memory import OutOfMemoryWatch
from anyrig.virtual.build import build_extension
from anyrig.virtual.extras.driver.library import build_library
from forked_programs import run_anyrig

PROGRAM = Path(__file__).parent / "programs" / "runs_out_of_memory.py"
REASON = "kept keeps 1.00 GiB in 16 tensors, more with every pass"
LINE = re.compile(r"Line: runs_out_of_memory.py:\d+ in fill: kept.append\(.*# HERE")
BY_LINE = re.compile(r" 1.00 GiB +runs_out_of_memory.py:\d+ in fill")
NEXT_STEP = "Run again with --watch memory: "


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Build ahead, so that no test meets the message of the first build."""
    build_extension()
    build_library()


def rehearse(rig: str, *words: str, way: str) -> str:
    """Return the standard error of a rehearsal that fails."""
    done = run_anyrig("rehearse", "--shape-only", "--rig", rig, *words, str(PROGRAM), way)
    assert done.returncode == 1, done.stderr
    return done.stderr


def first_line(errors: str) -> str:
    """Return the first line of the only report."""
    (line,) = [line for line in errors.splitlines() if " ran out of memory: " in line]
    return line


def test_one_process_is_tracked_from_its_import_of_torch() -> None:
    run = ("-m", "anyrig", "run", "--watch", "memory", "--nproc-per-node", "1")
    errors = rehearse("2x1GiB", *run, way="workers")
    first = first_line(errors)
    assert first.startswith(f"cuda:0 ran out of memory: {REASON}. Line: ")
    assert LINE.search(first)
    before, _, report = errors.partition(first)
    assert before.splitlines()[-1].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    assert BY_LINE.search(report)
    assert "64.00 MiB  kept[3]" in report
    assert NEXT_STEP not in errors


@pytest.mark.parametrize("flags", [[], ["--quiet"]], ids="".join)
def test_a_rehearsal_explains_the_error_by_itself(flags: list[str]) -> None:
    errors = rehearse("1GiB", *flags, way="at once")
    first = first_line(errors)
    assert first.startswith(f"cuda:0 ran out of memory: {REASON}. Line: ")
    assert LINE.search(first)
    _, _, report = errors.partition(first)
    assert BY_LINE.search(report)
    assert "64.00 MiB  kept[3]" in report
    assert NEXT_STEP not in errors


def test_without_tracking_the_report_names_the_next_step() -> None:
    errors = rehearse("1GiB", "-m", "anyrig", "run", way="at once")
    first = first_line(errors)
    assert first.startswith(f"cuda:0 ran out of memory: {REASON}. Line: ")
    assert LINE.search(first)
    before, _, report = errors.partition(first)
    assert before.splitlines()[-1].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    assert "64.00 MiB were requested at runs_out_of_memory.py" in report
    assert "64.00 MiB  kept[3]" in report
    assert report.splitlines()[-1].startswith(NEXT_STEP)
    assert errors.count(NEXT_STEP) == 1


@pytest.mark.parametrize("way", ["ranks", "rank 1"])
def test_the_failure_of_ranks_has_the_report_of_the_first(way: str) -> None:
    errors = rehearse("2x1GiB", "--nproc-per-device", "1", way=way)
    first = first_line(errors)
    _, _, message = errors.partition("anyrig: error: ")
    rank = message[len("rank ")]
    assert message.startswith(f"rank {rank} failed (exit code 1)")
    assert rank == "1" or way == "ranks"
    assert first.startswith(f"  cuda:{rank} ran out of memory: {REASON}. Line: ")
    assert LINE.search(first)
    assert message.index(first) < message.index("\nrank ") < message.index("\n  all output: ")
    assert NEXT_STEP not in errors
    assert BY_LINE.search(message)


def test_other_endings_have_no_report() -> None:
    watch = OutOfMemoryWatch(tracks=False)
    explained = torch.OutOfMemoryError("CUDA out of memory.")
    explained.report = "of the script's own explain_oom"  # type: ignore[attr-defined]
    for error in (SystemExit(3), KeyboardInterrupt(), ValueError(), explained):
        assert watch.explain(error) is None


def test_an_error_that_is_not_of_a_device_names_the_next_step() -> None:
    error = torch.OutOfMemoryError("of the program's own")
    text = OutOfMemoryWatch(tracks=False).explain(error)
    assert text is not None
    assert text.startswith("The error does not say which device ran out of memory.\n")
    assert NEXT_STEP in text


@pytest.mark.gpus(1)
@pytest.mark.parametrize("own", [track, explain_oom])
def test_a_script_may_track_memory_itself(own: type) -> None:
    watch = OutOfMemoryWatch(tracks=True)
    watch.begin()
    assert watch._recording is not None
    torch.ones(1, device="cuda")
    assert watch._recording.is_recording
    with own():
        torch.ones(1, device="cuda")
    assert not watch._recording.is_recording
    watch._recording._recorder.__exit__(None, None, None)
