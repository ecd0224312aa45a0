"""Processes share the memory of GPUs: sums, killed processes, forks and clean-up.

The processes do not import torch and so start quickly. Set ``ANYRIG_TEST_KILLS=200`` to kill that
many processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compiled_shim import load_shim
from ledger_process import GPU_BYTES, GPUS, Ledger
from on_a_rig import PROGRAMS

from anyrig.virtual.rehearsal_folder import new_rehearsal_folder

KILLS = int(os.environ.get("ANYRIG_TEST_KILLS", "12"))
MEMBER = Path(__file__).with_name("ledger_process.py")


class Member:
    """Another process that shares the GPUs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def __call__(self, request: str) -> str:
        self.send(request)
        return self.answer()

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Return the next line; empty if the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_shim("gpu_ledger_shim", tmp_path_factory.mktemp("shim"), "-pthread")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rehearsal"


@pytest.fixture
def ledger(library: ctypes.CDLL, folder: Path) -> Iterator[Ledger]:
    made = Ledger(library, folder)
    yield made
    made.leave()


@pytest.fixture
def start(library: ctypes.CDLL, folder: Path) -> Iterator[Callable[..., Member]]:
    with contextlib.ExitStack() as stack:

        def started(*arguments: str, program: Path = MEMBER, folder: Path = folder) -> Member:
            process = subprocess.Popen(
                [sys.executable, str(program), library._name, str(folder), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            member = Member(process)
            assert member.answer() == "joined"
            return member

        yield started


@pytest.fixture
def other(start: Callable[..., Member]) -> Member:
    return start()


def test_the_bytes_of_all_processes_count(ledger: Ledger, other: Member) -> None:
    assert other("reserve 0 600") == "True"
    assert not ledger.reserve(0, 600)
    assert ledger.reserve(99, 600)
    assert ledger.reserve(0, 400)
    assert ledger.processes(0) == {0: 400, other.pid: 600}
    assert (ledger.used(0), ledger.used(99)) == (1000, 600)
    other("release 0 500")
    assert ledger.used(0) == 500
    assert ledger.processes(99) == {0: 600}


@pytest.mark.parametrize("gpu", [0, 1, GPUS - 1])
def test_memory_of_a_killed_process_can_be_reserved(
    gpu: int, ledger: Ledger, other: Member
) -> None:
    assert other(f"reserve {gpu} 600") == "True"
    other.kill()
    assert ledger.used_upper_bound(gpu) == 600  # its slot has not been cleared
    assert ledger.reserve(gpu, 600)
    assert ledger.processes(gpu) == {0: 600}


def test_used_bytes_exclude_killed_processes(ledger: Ledger, other: Member) -> None:
    assert other("reserve 2 600") == "True"
    other.kill()
    assert (ledger.used(2), ledger.used_upper_bound(2)) == (0, 0)


def test_a_stopped_process_still_holds_its_bytes(ledger: Ledger, other: Member) -> None:
    assert other("reserve 0 600") == "True"
    other.process.send_signal(signal.SIGSTOP)
    try:
        assert not ledger.reserve(0, 600)
    finally:
        other.process.send_signal(signal.SIGCONT)


def test_a_forked_child_has_its_own_bytes(ledger: Ledger, other: Member) -> None:
    assert ledger.reserve(0, 600)
    ledger.before_fork()
    child = os.fork()
    ledger.after_fork(in_child=child == 0)
    if child == 0:
        took = ledger.reserve(0, 600), ledger.reserve(0, 300), ledger.used(0)
        ledger.release(0, 600)  # when its copies of the parent's tensors are freed
        os._exit(0 if (*took, ledger.used(0)) == (False, True, 900, 600) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert other("used 0") == "600"  # the child has ended
    assert ledger.processes(0) == {0: 600}


def test_an_idle_forked_child_does_not_keep_the_folder(ledger: Ledger, folder: Path) -> None:
    assert ledger.reserve(0, 600)
    ledger.before_fork()
    child = os.fork()
    ledger.after_fork(in_child=child == 0)
    if child == 0:
        signal.pause()
    try:
        ledger.leave()
        assert not folder.exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_last_process_removes_the_folder(ledger: Ledger, other: Member, folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "leases").mkdir()
    (folder / "leases" / "GPU-1.lock").touch()
    ledger.leave()
    assert folder.exists()
    other("leave")
    assert not folder.exists()


def test_a_folder_readable_by_others_is_made_private(library: ctypes.CDLL, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    ledger = Ledger(library, folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "gpus").stat().st_mode & 0o777 == 0o600
    ledger.leave()


def test_a_removed_folder_is_created_again(
    library: ctypes.CDLL, ledger: Ledger, folder: Path
) -> None:
    assert ledger.reserve(0, 600)
    ledger.leave()
    second = Ledger(library, folder)
    assert (second.used(0), folder.exists()) == (0, True)
    second.leave()


def test_folders_of_killed_rehearsals_are_removed_by_the_next(
    start: Callable[..., Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed, living, half_made = (new_rehearsal_folder() for _ in range(3))
    start(folder=killed).kill()
    start(folder=living)
    half_made.mkdir()
    (tmp_path / "anyrig-rehearsal-of-another-kind").mkdir()
    new_rehearsal_folder()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [living.name, "anyrig-rehearsal-of-another-kind"]
    )


def test_the_error_names_the_process_that_holds_the_lock(
    library: ctypes.CDLL, folder: Path
) -> None:
    folder.mkdir(mode=0o700)
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX, 1)\n"
        "print('holds', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder / "gpus")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        with pytest.raises(RuntimeError, match=f"{folder}: process {holder.pid} has held the lock"):
            Ledger(library, folder)


def test_a_folder_that_cannot_be_shared_is_reported(library: ctypes.CDLL, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(RuntimeError, match=f"{name}: it is not a folder owned by this user"):
            Ledger(library, tmp_path / name)
    with pytest.raises(RuntimeError, match="No such file or directory"):
        Ledger(library, tmp_path / "absent" / "folder")


def test_concurrent_processes_of_which_some_are_killed(
    ledger: Ledger, start: Callable[..., Member], folder: Path
) -> None:
    program = PROGRAMS / "takes_and_gives.py"
    workers = [start(str(seed), program=program) for seed in range(8)]
    for worker in workers:
        worker.send("start")
    answers = [worker.answer() for worker in workers]
    survivors = [[int(size) for size in answer.split()] for answer in answers if answer]
    assert len(survivors) == 5
    for gpu in range(4):
        assert ledger.used(gpu) == sum(held[gpu] for held in survivors)
        assert sorted(ledger.processes(gpu).values()) == sorted(
            [0, *(held[gpu] for held in survivors if held[gpu])]
        )
    ledger.leave()
    for worker in workers:
        worker.process.communicate(timeout=60)
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(library: ctypes.CDLL, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(RuntimeError, match="it is not a folder owned by this user"):
        Ledger(library, folder)
    assert list(folder.iterdir()) == []


def test_processes_killed_at_any_time_release_all_memory(
    ledger: Ledger, start: Callable[..., Member]
) -> None:
    program, chance = PROGRAMS / "takes_and_gives.py", random.Random(0)
    killed = 0
    while killed < KILLS:
        # Seeds with which a process does not kill itself.
        workers = [start(str(3 * chance.randrange(10**6) + 1), program=program) for _ in range(4)]
        for worker in workers:
            worker.send("start")
        for worker in workers:
            time.sleep(chance.uniform(0, 0.02))
            worker.kill()
        killed += len(workers)
        for gpu in range(4):
            assert ledger.reserve(gpu, GPU_BYTES)
            assert ledger.processes(gpu) == {0: GPU_BYTES}
            ledger.release(gpu, GPU_BYTES)
            assert ledger.used(gpu) == 0
