"""The guardian kills the sessions that it watches, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from anyrig.processes.guardian import Guardian, _forget_ended

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions are found in /proc")


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[str]]:
    with start("sleep", "600") as process:
        yield process
        process.kill()


def lives(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("way", ["end", "clear", "close"])
def test_a_whole_session_is_killed_even_without_its_leader(way: str) -> None:
    with (
        Guardian() as guardian,
        start("sleep", "600") as leader,
        start("sh", "-c", "sleep 600 & setsid sleep 600 & echo $! & exec sleep 0.2") as left,
    ):
        guardian.watch(leader.pid)
        guardian.watch(left.pid)
        assert left.wait(timeout=60) == 0
        assert left.stdout is not None
        apart = int(left.stdout.readline())
        until_leader_of_a_session(apart)  # until then it looks like one of the orphans
        orphans = [pid for pid in all_processes() if session_of(pid) == left.pid]
        assert orphans
        if way == "end":
            guardian.end(0.1)
        elif way == "clear":
            guardian.clear()
        else:
            guardian.__exit__()
        assert leader.wait(timeout=60) == -signal.SIGKILL
        deadline = time.monotonic() + 60
        while any(map(lives, orphans)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(lives, orphans))
        os.kill(apart, signal.SIGKILL)  # of a session of its own


@pytest.mark.parametrize("expects", [True, False])
def test_ranks_that_were_being_started_are_found_by_a_variable(
    expects: bool, tmp_path: Path
) -> None:
    def start_with(value: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "-c", "sleep 600; true"], env={"EXPECTED": value}, start_new_session=True
        )

    ours, its = start_with(f"{tmp_path}/0/error"), start_with(f"{tmp_path}-of-another/0/error")
    guardian = Guardian()
    guardian.expect(f"EXPECTED={tmp_path}/")
    if not expects:  # all are started, and their ids are known
        guardian.expect("")
    guardian.__exit__()
    assert ours.poll() == (-signal.SIGKILL if expects else None)
    assert its.poll() is None
    for each in (ours, its):
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
        each.wait(20)


def test_the_earliest_deadline_holds() -> None:
    with start("sleep", "600") as leader, Guardian() as guardian:
        guardian.watch(leader.pid)
        guardian.end(0.3)
        guardian.end(600)
        assert leader.wait(timeout=60) == -signal.SIGKILL


def test_a_restart_clears_the_deadline() -> None:
    with start("sleep", "600") as old, start("sleep", "600") as new, Guardian() as guardian:
        guardian.watch(old.pid)
        guardian.end(0.5)
        guardian.clear()
        assert old.wait(timeout=60) == -signal.SIGKILL
        guardian.watch(new.pid)
        time.sleep(1.0)
        assert new.poll() is None
        new.kill()


def test_a_process_that_reuses_a_leader_s_number_lives_on(
    bystander: subprocess.Popen[str],
) -> None:
    with Guardian() as guardian:
        guardian._send(f"watch {bystander.pid} 1")  # the process with this id started earlier
        guardian.end(0)
    assert bystander.poll() is None


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="only root can choose a number")
def test_a_reused_number_is_not_watched() -> None:
    with Guardian() as guardian:
        with start("sleep", "600") as leader:
            guardian.watch(leader.pid)
            time.sleep(0.05)  # clock ticks distinguish the starts
            leader.kill()
        for _ in range(100):  # other processes start at the same time
            try:
                LAST_PID.write_text(str(leader.pid - 1))
            except OSError as error:
                pytest.skip(f"the number of a process cannot be chosen here: {error}")
            other = start("sleep", "600")
            if other.pid == leader.pid:
                break
            other.kill()
            other.communicate()
        else:
            pytest.skip("other processes took the number each time")
    try:
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


def test_a_session_without_processes_is_forgotten() -> None:
    with start("sh", "-c", "sleep 600 & echo $!; exec sleep 600") as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        leaders = {leader.pid: psutil.Process(leader.pid)}
        _forget_ended(leaders)
        leader.kill()
        leader.wait()
        _forget_ended(leaders)
        assert leaders.keys() == {leader.pid}  # its child lives
        os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while leaders and time.monotonic() < deadline:
            _forget_ended(leaders)
        assert leaders == {}


def all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def until_leader_of_a_session(pid: int) -> None:
    deadline = time.monotonic() + 60
    while session_of(pid) != pid:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
