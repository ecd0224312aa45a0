"""A group of ranks ends as a whole and in time, reports why, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from failing_group import PROGRAM, RUN, FailingGroup, failing_group

from anyrig.processes.stopping_signals import handled_by, stop
from forked_programs import run_anyrig

CPU = [*RUN, "--device", "cpu"]
TWO_RANKS = ["--device", "cpu", "--nproc-per-device", "2"]

# Lowers the limit of open files after the launcher has checked it, so that starting ranks fails.
LIMIT_LATE = """
import resource, sys
from anyrig.processes import launcher
check = launcher._check_open_files

def then_lower(processes):
    check(processes)
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))

launcher._check_open_files = then_lower
sys.argv = ["anyrig", *sys.argv[1:]]
from anyrig.cli.app import main
main()
"""

# 200 ranks take at least 20 s to start, however fast the machine is, and however slowly the test
# sees them.
START_SLOWLY = """
import subprocess, sys, time
start = subprocess.Popen.__init__

def wait_then_start(*args, **kwargs):
    time.sleep(0.1)
    start(*args, **kwargs)

subprocess.Popen.__init__ = wait_then_start
sys.argv = ["anyrig", *sys.argv[1:]]
from anyrig.cli.app import main
main()
"""

# docs/processes.md promises 5 s; a busy machine may take a little longer.
SECONDS = 8.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[FailingGroup]:
    with failing_group(tmp_path) as group:
        yield group


def test_ranks_meet_and_their_lines_are_labelled() -> None:
    ended = run_anyrig("run", *TWO_RANKS, str(PROGRAM), "well", timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        "[rank 0] done 0",
        "[rank 0] group held",  # else a dying model would wait for its threads
        "[rank 0] total 3.0",
        "[rank 1] done 0",
        "[rank 1] group held",
        "[rank 1] total 3.0",
    ]


@pytest.mark.parametrize(
    ("way", "first", "also"),
    [
        ("raise", "failed (exit code 1)", ["last error: RuntimeError: the disk is on fire"]),
        ("children", "was killed (SIGKILL)", []),
        ("late", "did not reach a collective in time", [f"it was at {PROGRAM}:", "in sleep"]),
        (
            "suspend",
            "did not reach a collective in time",
            ["it had been suspended", "in suspend"],
        ),
        ("leave", "ended early", []),
    ],
)
def test_the_cause_is_named_first(
    group: FailingGroup, way: str, first: str, also: list[str]
) -> None:
    launcher = group.start(way, ranks=2, flags=["--timeout", "2"])
    group.wait_ready(2)
    assert group.wait() < 2 + SECONDS
    assert launcher.returncode == 1
    line, *rest = group.message()
    described = "\n".join([line, *takewhile(lambda text: not text.startswith("rank 0"), rest)])
    assert line.startswith(f"error: rank 1 {first}"), group.errors()
    for words in ["last output: total 3.0", *also]:
        assert words in described
    assert group.litter() == []


def test_a_restarted_group_finds_its_attempt_and_files(
    group: FailingGroup,
) -> None:
    launcher = group.start("again", ranks=2, flags=["--max-restarts", "1"])
    group.wait()
    assert launcher.returncode == 0, group.errors()
    assert "[rank 1] loaded epoch 7" in group.output()
    assert "[rank 1] done 1" in group.output()
    (line, *_) = group.message()
    assert line == "attempt 1 of 2 failed, restarting: rank 1 was killed (SIGKILL)"
    assert group.litter() == []


@pytest.mark.parametrize(
    ("signum", "way", "code"),
    [
        (signal.SIGINT, "stubborn", 130),  # twice, because the ranks ignore the first signal
        (signal.SIGTERM, "wait", 143),
        (signal.SIGKILL, "wait", -9),
    ],
)
def test_nothing_is_left_when_the_launcher_ends(
    group: FailingGroup, signum: signal.Signals, way: str, code: int
) -> None:
    launcher = group.start(way, ranks=2)
    group.wait_ready(2)
    launcher.send_signal(signum)
    if way == "stubborn":
        time.sleep(0.3)
        launcher.send_signal(signum)
    assert group.wait() < SECONDS
    assert launcher.returncode == code
    assert group.litter() == []
    if signum is not signal.SIGKILL:
        line, *rest = group.message()
        assert line == f"the launcher was stopped ({signum.name})"
        assert f"it was at {PROGRAM}:" in "\n".join(rest)
        assert "all output" not in group.errors()


def test_ignored_signals_stay_ignored_and_repeated_ones_do_no_more() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled_by(stop):
            os.kill(os.getpid(), signal.SIGHUP)  # nohup's
            with pytest.raises(Exception, match="got SIGTERM"):
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # while the first signal is being handled
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


ONE_FAILS = """
import torch
import anyrig
from anyrig.processes.group.membership import join_group

def prepare():
    with anyrig.only_first_rank() as first:
        if first:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate " + "9" * 800)

join_group()
prepare()
"""


def test_a_rank_that_waited_for_the_first_is_not_the_cause(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ONE_FAILS)
    ended = run_anyrig("run", *TWO_RANKS, str(script), timeout=60)
    live, _, report = ended.stderr.partition("anyrig: error: ")
    assert report.startswith(f"rank 0 failed (exit code 1)\n  it was at {script}:9 in prepare")
    waited = report.partition("rank 1 ")[2]
    assert waited.startswith("waited for the rank that failed (exit code 1)\n")
    assert f"it was at {script}:7 in prepare" in waited
    assert "last error: anyrig.errors.OtherRankError: rank 0 failed in only_first_rank() " in waited
    assert "[rank 0] torch.OutOfMemoryError: CUDA out of memory" in live
    assert "[rank 1] anyrig.errors.OtherRankError: rank 0 failed" in live
    assert "[rank0]" not in ended.stderr
    assert "[rank1]" not in ended.stderr
    whole = "9" * 800  # in the output of each rank, and one line in the report
    full = [line[:8] for line in ended.stderr.splitlines() if whole in line]
    assert sorted(full) == ["[rank 0]", "[rank 1]"]
    assert "CUDA out of memory. Tried to allocate 999" in report
    host = rf"\b{re.escape(os.uname().nodename)}\b"  # as a word: a folder's random name may hold it
    assert not re.search(host, report.replace(str(script), ""))


def test_several_nodes_need_a_meeting_place() -> None:
    ended = run_anyrig("run", *TWO_RANKS, "--nnodes", "2", str(PROGRAM), "well", timeout=60)
    assert ended.returncode == 2
    assert "--rdzv-endpoint HOST:PORT" in ended.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_stops_while_it_starts_ranks(
    group: FailingGroup, signum: signal.Signals
) -> None:
    ranks = 200
    script = group.folder / "sleep.py"
    script.write_text("import time; time.sleep(600)")
    flags = [*CPU[3:], "--nproc-per-device", str(ranks), str(script)]
    launcher = group.start(command=[sys.executable, "-c", START_SLOWLY, *flags])
    while len(group.left()) < 5:
        assert launcher.poll() is None, group.errors()
        time.sleep(0.01)
    launcher.send_signal(signum)
    seen = set()
    began = time.monotonic()
    while left := group.left():
        seen |= left.keys()
        assert time.monotonic() < began + 60
        launcher.poll()
    assert time.monotonic() - began < 30
    assert launcher.wait(30) == (-signum if signum is signal.SIGKILL else 128 + signum)
    assert len(seen) < ranks
    assert group.litter() == []


def test_started_ranks_end_when_another_cannot_start(group: FailingGroup) -> None:
    script = group.folder / "sleep.py"
    script.write_text("import time; time.sleep(600)")
    command = [sys.executable, "-c", LIMIT_LATE, *CPU[3:], "--nproc-per-device", "30", str(script)]
    launcher = group.start(command=command)
    group.wait()
    assert launcher.returncode == 1
    assert "Too many open files" in group.errors()
    assert group.litter() == []
