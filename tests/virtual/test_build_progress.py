"""What a person sees of a build: on a terminal, and in a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time

import pytest

from anyrig.virtual import build_progress, compiler
from anyrig.virtual.build_progress import BuildProgress

BUILD = """
import sys, time
from anyrig.virtual.build_progress import BuildProgress
with BuildProgress("g++ 12", 2.0):
    time.sleep(float(sys.argv[1]))
"""


def test_a_pipe_gets_a_line_at_every_interval(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert build_progress.SECONDS_BETWEEN_LINES <= 5
    monkeypatch.setattr(build_progress, "SECONDS_BETWEEN_LINES", 0.6)
    threads = threading.active_count()
    with BuildProgress("g++ 12", 47.4):
        time.sleep(2)
    assert threading.active_count() == threads
    out, err = capfd.readouterr()
    first, *later = err.splitlines()
    assert out == ""
    assert first == (
        "anyrig: building the virtual GPUs, once for this PyTorch, in about 47 s, with g++ 12"
    )
    assert later[0] == "anyrig: building the virtual GPUs: 1 s of about 47 s"
    assert len(later) >= 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_terminal_gets_a_bar_that_moves_and_goes() -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", BUILD, "3"], stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        written = b"".join(iter(lambda: _read(ours), b"")).decode()
    os.close(ours)
    assert process.returncode == 0
    assert "Building the virtual GPUs, once for this PyTorch" in written
    assert "of about 2 s" in written
    # The lengths of its filled part: it grows, and is not full although the estimate is past.
    filled = [
        len(bar.replace("\x1b", "")) for bar in re.findall("\u2501+(?=\u2578|\u257a|\x1b)", written)
    ]
    assert len(set(filled)) > 2
    assert "anyrig:" not in written


def test_a_program_that_never_leaves_the_block_ends() -> None:
    program = (
        "from anyrig.virtual.build_progress import BuildProgress\nBuildProgress('', 9).__enter__()"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0


def test_a_wait_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildProgress.waiting_for("process 7 on host"):
        pass
    assert capsys.readouterr().err == (
        "anyrig: waiting for the virtual GPUs, which process 7 on host is building\n"
    )


def test_a_wait_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with BuildProgress.waiting_for("process 7 on host"):
        pass
    said = capsys.readouterr().err
    assert "waiting for the virtual GPUs, which process 7 on host is building" in said
    assert "anyrig:" not in said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux: the other end is closed
        return b""


def test_the_estimate_grows_with_what_one_core_must_do_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "_possible_jobs", lambda: 2)
    two = compiler.estimate_seconds(2)
    assert 30 < two < 90
    monkeypatch.setattr(compiler, "_possible_jobs", lambda: 1)
    assert compiler.estimate_seconds(2) == 2 * two
    monkeypatch.setattr(compiler, "_possible_jobs", lambda: 8)
    assert compiler.estimate_seconds(8) < two
