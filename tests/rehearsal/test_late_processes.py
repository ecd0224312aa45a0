"""The report waits for processes that use a GPU and that the program leaves behind."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from anyrig.rehearsal import record_folder
from anyrig.rehearsal.record_folder import RecordFolder
from forked_programs import run_anyrig

PROGRAM = Path(__file__).parent / "programs" / "leaves_ranks_behind.py"


def rehearse(how: str, facts: Path) -> tuple[int, str, str]:
    ready = facts.with_name("ready")
    words = ("rehearse", "--shape-only", "--rig", "2xT4", "--json", str(facts))
    done = run_anyrig(*words, str(PROGRAM), how, str(ready))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("how", ["session", "shell", "spawned"])
def test_a_rank_that_ends_last_is_in_the_report(how: str, tmp_path: Path) -> None:
    status, _, errors = rehearse(how, tmp_path / "facts.json")
    assert status == 0, errors
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert len(facts["devices"]) == 2
    assert "misses" not in errors


def test_a_daemon_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    status, _, errors = rehearse("daemon", tmp_path / "facts.json")
    assert status == 0, errors
    assert "the report waits" not in errors
    assert time.monotonic() - began < 30


def test_after_a_failure_the_report_says_who_is_missing(tmp_path: Path) -> None:
    status, output, errors = rehearse("fails", tmp_path / "facts.json")
    process = int(output.split()[0])
    try:
        assert status == 3
        assert f"anyrig: the report misses process {process}, which still runs; " in errors
    finally:
        os.kill(process, signal.SIGKILL)


def test_a_process_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        RecordFolder(tmp_path).note_running()
        RecordFolder(tmp_path).note_gpu()
        time.sleep(60)
        os._exit(0)
    while not (tmp_path / f"{child}.uses-gpu").exists():
        time.sleep(0.01)
    folder = RecordFolder(tmp_path)
    assert folder.await_others(0.1) == [child]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert folder.await_others(5.0) == []


@pytest.mark.parametrize("uses_gpu", [True, False])
def test_long_after_its_import_of_torch_only_a_process_with_a_gpu_is_waited_for(
    uses_gpu: bool, tmp_path: Path
) -> None:
    folder = RecordFolder(tmp_path)
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        folder.note_running()
        folder.note_import()
        if uses_gpu:
            folder.note_gpu()
        os.write(done, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    try:
        os.utime(tmp_path / f"{child}.imported", (0, 0))
        assert folder.await_others(0.1) == ([child] if uses_gpu else [])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_waiting_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_folder, "_QUIET_SECONDS", 0.0)
    folder = RecordFolder(tmp_path)
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        folder.note_running()
        os.write(done, b"x")
        time.sleep(0.3)
        os._exit(0)
    os.read(ready, 1)
    assert folder.await_others(10.0) == []
    os.waitpid(child, 0)
    assert f"the report waits up to 10 s for process {child}," in capsys.readouterr().err
