"""A group of ranks ends as a whole, in time, and says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("rank_program.py")
RUN = [sys.executable, "-m", "anyrig", "run", "--device", "cpu"]


def run(way: str, *flags: str, ranks: int = 3) -> subprocess.CompletedProcess[str]:
    command = [*RUN, "--nproc-per-device", str(ranks), *flags, str(PROGRAM), way]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def summary(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of the launcher's own message, without those of the ranks."""
    return ended.stderr.partition("anyrig: error: ")[2].splitlines()


def test_ranks_find_each_other_and_their_lines_are_labelled() -> None:
    ended = run("well", ranks=2)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        "[rank 0] done 0",
        "[rank 0] total 3.0",
        "[rank 1] done 0",
        "[rank 1] total 3.0",
    ]


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("raise", ["rank 1 on HOST failed (exit code 1)", "the disk is on fire"]),
        ("kill", ["rank 1 on HOST was killed (SIGKILL)"]),
        ("late", ["rank 1 on HOST did not come to a collective in time", "rank_program.py:59"]),
        ("leave", ["rank 1 on HOST ended early"]),
    ],
)
def test_the_rank_at_fault_is_named_first(way: str, expected: list[str]) -> None:
    ended = run(way)
    first, rest = summary(ended)[0], "\n".join(summary(ended)[1:4])
    assert ended.returncode == 1
    assert first.startswith(expected[0].replace("HOST", os.uname().nodename)), ended.stderr
    assert "last output: total 6.0" in rest
    for words in expected[1:]:
        assert words in rest


def test_a_group_is_started_again_and_knows_its_attempt() -> None:
    ended = run("again", "--max-restarts", "1", ranks=2)
    assert ended.returncode == 0, ended.stderr
    assert "[rank 1] done 1" in ended.stdout
    assert summary(ended) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_launcher_is_ended(signum: signal.Signals, tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [*RUN, "--nproc-per-device", "2", str(PROGRAM), "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TEST_PIDS": str(tmp_path)},
    )
    with launcher:
        assert launcher.stdout is not None
        ready = 0
        while ready < 2:
            ready += "ready" in launcher.stdout.readline()
        launcher.send_signal(signum)
        deadline = time.monotonic() + 5
        pids = [int(pid) for file in tmp_path.iterdir() for pid in file.read_text().split()]
        assert len(pids) == 4
        while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == []
    assert launcher.returncode in (128 + signum, -signum)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_several_nodes_need_a_meeting_place() -> None:
    ended = run("well", "--nnodes", "2")
    assert ended.returncode == 1
    assert "--rdzv-endpoint HOST:PORT" in ended.stderr


def test_nothing_listens_but_on_loopback() -> None:
    from anyrig.parallel.ranks.loopback import LoopbackRendezvous

    met = LoopbackRendezvous().next_rendezvous()
    store = met.bootstrap_store_info
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{store.master_port:04X}") and line.split()[3] == "0A"
    ]
    assert listening == [f"0100007F:{store.master_port:04X}"]
