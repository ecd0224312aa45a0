"""Processes share the memory of cards: sums, the dead, forks, and nothing that stays behind.

The processes here have no torch, so many of them cost little. ``ANYRIG_TEST_KILLS=200`` kills as
many by hand.
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
from ledger_of_cards import CARD_BYTES, CARDS, Ledger
from on_a_rig import PROGRAMS

from anyrig.virtual.rehearsal_folder import new_rehearsal_folder

KILLS = int(os.environ.get("ANYRIG_TEST_KILLS", "12"))
MEMBER = Path(__file__).with_name("ledger_of_cards.py")


class Member:
    """Another process that shares the cards."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def __call__(self, request: str) -> str:
        self.tell(request)
        return self.answer()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """One line; nothing if the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_shim("card_ledger_shim", tmp_path_factory.mktemp("shim"), "-pthread")


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


def test_bytes_of_all_count_and_each_is_named(ledger: Ledger, other: Member) -> None:
    assert other("reserve 0 600") == "True"
    assert not ledger.reserve(0, 600)
    assert ledger.reserve(99, 600)
    assert ledger.reserve(0, 400)
    assert ledger.processes(0) == {0: 400, other.pid: 600}
    assert (ledger.used(0), ledger.used(99)) == (1000, 600)
    other("release 0 500")
    assert ledger.used(0) == 500
    assert ledger.processes(99) == {0: 600}


@pytest.mark.parametrize("card", [0, 1, CARDS - 1])
def test_what_a_killed_process_held_fits_again(card: int, ledger: Ledger, other: Member) -> None:
    assert other(f"reserve {card} 600") == "True"
    other.kill()
    assert ledger.used_at_most(card) == 600  # nobody has looked
    assert ledger.reserve(card, 600)
    assert ledger.processes(card) == {0: 600}


def test_looking_at_what_is_used_counts_the_living_alone(ledger: Ledger, other: Member) -> None:
    assert other("reserve 2 600") == "True"
    other.kill()
    assert (ledger.used(2), ledger.used_at_most(2)) == (0, 0)


def test_a_stopped_process_still_holds_its_bytes(ledger: Ledger, other: Member) -> None:
    assert other("reserve 0 600") == "True"
    other.process.send_signal(signal.SIGSTOP)
    try:
        assert not ledger.reserve(0, 600)
    finally:
        other.process.send_signal(signal.SIGCONT)


def test_a_forked_child_holds_nothing_and_takes_nothing_away(ledger: Ledger, other: Member) -> None:
    assert ledger.reserve(0, 600)
    ledger.before_fork()
    child = os.fork()
    ledger.after_fork(in_child=child == 0)
    if child == 0:
        took = ledger.reserve(0, 600), ledger.reserve(0, 300), ledger.used(0)
        ledger.release(0, 600)  # as its copies of the parent's tensors go
        os._exit(0 if (*took, ledger.used(0)) == (False, True, 900, 600) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert other("used 0") == "600"  # the child has ended
    assert ledger.processes(0) == {0: 600}


def test_a_forked_child_that_does_nothing_is_no_process_of_the_cards(
    ledger: Ledger, folder: Path
) -> None:
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


def test_the_last_to_leave_removes_the_folder(ledger: Ledger, other: Member, folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "leases").mkdir()
    (folder / "leases" / "GPU-1.lock").touch()
    ledger.leave()
    assert folder.exists()
    other("leave")
    assert not folder.exists()


def test_a_folder_that_others_can_look_into_is_closed_to_them(
    library: ctypes.CDLL, folder: Path
) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    ledger = Ledger(library, folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "cards").stat().st_mode & 0o777 == 0o600
    ledger.leave()


def test_who_comes_after_the_last_makes_it_anew(
    library: ctypes.CDLL, ledger: Ledger, folder: Path
) -> None:
    assert ledger.reserve(0, 600)
    ledger.leave()
    second = Ledger(library, folder)
    assert (second.used(0), folder.exists()) == (0, True)
    second.leave()


def test_folders_of_killed_rehearsals_go_when_the_next_starts(
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


def test_a_process_that_keeps_the_lock_is_named_in_the_end(
    library: ctypes.CDLL, folder: Path
) -> None:
    folder.mkdir(mode=0o700)
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX, 1)\n"
        "print('holds', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder / "cards")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        with pytest.raises(RuntimeError, match=f"{folder}: process {holder.pid} has held the lock"):
            Ledger(library, folder)


def test_a_folder_that_cannot_be_shared_is_told(library: ctypes.CDLL, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(RuntimeError, match=f"{name}: it is not a folder of this user's"):
            Ledger(library, tmp_path / name)
    with pytest.raises(RuntimeError, match="No such file or directory"):
        Ledger(library, tmp_path / "absent" / "folder")


def test_many_take_and_give_and_some_are_killed(
    ledger: Ledger, start: Callable[..., Member], folder: Path
) -> None:
    program = PROGRAMS / "takes_and_gives.py"
    workers = [start(str(seed), program=program) for seed in range(8)]
    for worker in workers:
        worker.tell("start")
    answers = [worker.answer() for worker in workers]
    survivors = [[int(size) for size in answer.split()] for answer in answers if answer]
    assert len(survivors) == 5
    for card in range(4):
        assert ledger.used(card) == sum(held[card] for held in survivors)
        assert sorted(ledger.processes(card).values()) == sorted(
            [0, *(held[card] for held in survivors if held[card])]
        )
    ledger.leave()
    for worker in workers:
        worker.process.communicate(timeout=60)
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(library: ctypes.CDLL, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(RuntimeError, match="it is not a folder of this user's"):
        Ledger(library, folder)
    assert list(folder.iterdir()) == []


def test_processes_killed_at_any_moment_give_all_memory_back(
    ledger: Ledger, start: Callable[..., Member]
) -> None:
    program, chance = PROGRAMS / "takes_and_gives.py", random.Random(0)
    killed = 0
    while killed < KILLS:
        # Seeds that would not kill themselves.
        workers = [start(str(3 * chance.randrange(10**6) + 1), program=program) for _ in range(4)]
        for worker in workers:
            worker.tell("start")
        for worker in workers:
            time.sleep(chance.uniform(0, 0.02))
            worker.kill()
        killed += len(workers)
        for card in range(4):
            assert ledger.reserve(card, CARD_BYTES)
            assert ledger.processes(card) == {0: CARD_BYTES}
            ledger.release(card, CARD_BYTES)
            assert ledger.used(card) == 0
