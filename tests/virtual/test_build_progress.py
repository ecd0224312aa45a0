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

# A child process stands for a compiler, which uses half of the estimated processor time.
BUILD = r"""
import subprocess, sys
from anyrig.virtual.build_progress import BuildProgress
work = "import time\nwhile time.process_time() < 2: pass"
with BuildProgress("g++ 12", 4.0, 1):
    subprocess.run([sys.executable, "-I", "-S", "-c", work], check=True)
"""


def test_a_pipe_gets_a_line_at_every_interval(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert build_progress.SECONDS_BETWEEN_LINES <= 5
    monkeypatch.setattr(build_progress, "SECONDS_BETWEEN_LINES", 0.6)
    threads = threading.active_count()
    monkeypatch.setattr(build_progress, "estimate_seconds", lambda cpu_seconds, jobs: 47.4)
    with BuildProgress("g++ 12", 94.8, 2):
        time.sleep(2)
    assert threading.active_count() == threads
    out, err = capfd.readouterr()
    first, *later = err.splitlines()
    assert out == ""
    assert first == (
        "anyrig: building the virtual GPUs, once for this PyTorch, in about 47 s, with g++ 12"
    )
    assert re.fullmatch(r"anyrig: building the virtual GPUs: \d+ s of about 47 s", later[0])
    assert len(later) >= 2


def test_the_progress_follows_the_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_progress, "estimate_seconds", lambda cpu_seconds, jobs: 0.1)
    work = "import time\nwhile time.process_time() < 1: pass"  # of the two seconds that it needs
    with BuildProgress("g++ 12", 2.0, 1) as progress:
        subprocess.run([sys.executable, "-I", "-S", "-c", work], check=True)
        elapsed_seconds, whole_seconds = progress._measure()
    assert 0.4 < elapsed_seconds / whole_seconds < 0.7


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_terminal_gets_a_bar_that_moves_and_goes() -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", BUILD], stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        written = b"".join(iter(lambda: _read(ours), b"")).decode()
    os.close(ours)
    assert process.returncode == 0
    assert "Building the virtual GPUs, once for this PyTorch" in written
    # The lengths of its filled part: it grows with the work, and is not full at the end.
    filled = [
        len(bar.replace("\x1b", "")) for bar in re.findall("\u2501+(?=\u2578|\u257a|\x1b)", written)
    ]
    assert len(set(filled)) > 2
    # The time never passes the estimate that is shown with it.
    shown = re.findall(
        r"(\d+):(\d\d):(\d\d)\D+of about (\d+) s", re.sub("\x1b\\[[0-9;]*m", "", written)
    )
    assert len(shown) > 2
    for hours, minutes, seconds, whole in shown:
        assert int(hours) * 3600 + int(minutes) * 60 + int(seconds) <= int(whole)
    assert "anyrig:" not in written


def test_a_program_that_never_leaves_the_block_ends() -> None:
    program = "from anyrig.virtual.build_progress import BuildProgress as Progress; "
    program += "Progress('', 9, 1).__enter__()"
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


def test_the_estimate_grows_with_the_load_and_falls_with_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def estimate(cores: int, load: float, jobs: int) -> float:
        monkeypatch.setattr(build_progress.os, "cpu_count", lambda: cores)
        monkeypatch.setattr(build_progress.os, "getloadavg", lambda: (load, 0.0, 0.0))
        return build_progress.estimate_seconds(140.0, jobs)

    assert estimate(cores=2, load=0.0, jobs=2) == 70
    assert estimate(cores=1, load=0.0, jobs=1) == 140
    assert estimate(cores=8, load=0.0, jobs=8) == 17.5
    assert estimate(cores=8, load=4.0, jobs=4) == 35  # there are cores for both
    assert estimate(cores=2, load=4.0, jobs=2) == 210  # a third of each core


def test_a_build_that_takes_longer_than_thought_is_never_done() -> None:
    shares = [build_progress.fraction_done(used, 100.0) for used in range(0, 1000, 10)]
    assert shares == sorted(set(shares))
    assert shares[5] == 0.5
    assert shares[-1] < 1


def test_more_units_need_more_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_possible_jobs", lambda: 2)
    assert 100 < compiler.estimate_cpu_seconds(2) < compiler.estimate_cpu_seconds(8)
    assert (compiler.count_jobs(1), compiler.count_jobs(8)) == (1, 2)
