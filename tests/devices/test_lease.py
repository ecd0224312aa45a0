"""Leases on devices, between real processes."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from anyrig.devices import lease_file
from anyrig.devices.lease import (
    Lease,
    LeaseHolder,
    acquire_first,
    acquire_lease,
    one_chooser_at_a_time,
)
from anyrig.devices.lease_file import open_locked
from anyrig.devices.process import process_name
from anyrig.errors import LeaseDirectoryError, NoDeviceError

UUIDS = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")
posix_only = pytest.mark.skipif(os.name != "posix", reason="there is no fork, nor user, here")

Start = Callable[[str], "Holder"]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYRIG_LEASE_DIRECTORY", str(tmp_path / "leases"))
    return tmp_path / "leases"


class Holder:
    """Another process: it runs code, says lines, and waits to be told to end."""

    def __init__(self, code: str) -> None:
        program = (
            "import os, sys, time\n"
            "from anyrig.devices.lease import *\n"
            "def say(text): print(text, flush=True)\n" + textwrap.dedent(code)
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Reading from a process that is stuck ends, and fails the test.
        self.watchdog = threading.Timer(60, self.process.kill)
        self.watchdog.start()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)

    def close(self) -> None:
        self.watchdog.cancel()
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start() -> Iterator[Start]:
    holders: list[Holder] = []

    def run(code: str) -> Holder:
        holders.append(Holder(code))
        return holders[-1]

    yield run
    for holder in holders:
        holder.close()


def test_another_process_is_told_who_holds_the_device(start: Start) -> None:
    holder = start("acquire_lease('GPU-aaaa'); say('held'); sys.stdin.readline()")
    assert holder.line() == "held"
    answer = acquire_lease("GPU-aaaa")
    assert isinstance(answer, LeaseHolder)
    assert (answer.pid, answer.host) == (holder.process.pid, socket.gethostname())
    assert answer.since is not None
    assert timedelta() <= datetime.now(timezone.utc) - answer.since < timedelta(seconds=60)
    assert str(answer) == (
        f"process {holder.process.pid} since {answer.since.astimezone():%Y-%m-%d %H:%M:%S}"
    )


def test_a_holder_elsewhere_is_named_with_its_host() -> None:
    assert str(LeaseHolder(7, "node3", None)) == "process 7 on node3"
    assert str(LeaseHolder(None, None, None)) == "an unknown process"


def test_the_moment_is_that_of_the_clock_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = LeaseHolder(7, None, datetime(2026, 1, 1, 20, 30, tzinfo=timezone.utc))
    with monkeypatch.context() as scope:
        scope.setenv("TZ", "XYZ-9")  # nine hours before UTC
        time.tzset()
        assert str(holder) == "process 7 since 2026-01-02 05:30:00"
    time.tzset()


def test_a_released_device_can_be_had_again(start: Start) -> None:
    with acquire_lease("GPU-aaaa") as lease:
        assert isinstance(lease, Lease)
        assert lease.held
    assert not lease.held
    other = start("say(type(acquire_lease('GPU-aaaa')).__name__)")
    assert other.line() == "Lease"


def test_a_second_lease_of_one_process_is_the_first_counted(start: Start) -> None:
    first = acquire_lease("GPU-AAAA")
    second = acquire_lease("aaaa")  # as PyTorch writes it
    assert first is second
    assert isinstance(first, Lease)
    first.release()
    assert first.held
    first.release()
    assert not first.held
    first.release()
    assert start("say(type(acquire_lease('GPU-aaaa')).__name__)").line() == "Lease"


@posix_only
def test_a_killed_process_leaves_no_lease(start: Start) -> None:
    holder = start("acquire_lease('GPU-aaaa'); say('held'); time.sleep(60)")
    assert holder.line() == "held"
    os.kill(holder.process.pid, signal.SIGKILL)
    holder.process.wait(timeout=30)
    answer = acquire_lease("GPU-aaaa")
    assert isinstance(answer, Lease)
    answer.release()


def acquire_soon(uuid: str) -> Lease | LeaseHolder:
    """Acquire, trying for a while: a forked child that has not run yet still has what it closes."""
    deadline = time.monotonic() + 5
    while isinstance(answer := acquire_lease(uuid), LeaseHolder) and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


@posix_only
@pytest.mark.parametrize(
    "child",
    [
        "os.fork() or time.sleep(60)",
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)).start()",
        "subprocess.Popen(['sleep', '60'], close_fds=False)",
    ],
)
def test_a_child_does_not_prolong_the_lease(start: Start, child: str, directory: Path) -> None:
    holder = start(
        f"""
        import multiprocessing, subprocess
        os.setsid()
        acquire_lease('GPU-aaaa')
        with one_chooser_at_a_time():
            {child}
            say('forked')
            time.sleep(60)
        """
    )
    assert holder.line() == "forked"
    holder.kill()
    try:
        answer = acquire_soon("GPU-aaaa")
        choosing = open_locked(directory / "choosing.lock")
    finally:
        os.killpg(holder.process.pid, signal.SIGKILL)
    assert isinstance(answer, Lease)
    answer.release()
    assert choosing is not None
    os.close(choosing)


@posix_only
def test_a_forked_child_does_not_own_the_lease(start: Start) -> None:
    parent = start(
        """
        lease = acquire_lease('GPU-aaaa')
        if os.fork() == 0:
            say(f"{lease.held} {acquire_lease('GPU-aaaa').pid == os.getppid()}")
            lease.release()  # of no effect
            del lease
            os._exit(0)
        os.wait()
        say(str(lease.held))
        time.sleep(60)
        """
    )
    assert [parent.line(), parent.line()] == ["False True", "True"]
    assert isinstance(acquire_lease("GPU-aaaa"), LeaseHolder)


@posix_only
def test_a_child_forked_while_a_thread_takes_a_lease_does_not_prolong_it(start: Start) -> None:
    holder = start(
        """
        import threading, warnings
        import anyrig.devices.lease as lease
        warnings.simplefilter('ignore')  # forking with threads warns from Python 3.12
        os.setsid()
        opened, open_locked = threading.Event(), lease.open_locked
        def open_slowly(path):
            descriptor = open_locked(path)
            opened.set()
            time.sleep(0.3)
            return descriptor
        lease.open_locked = open_slowly
        threading.Thread(target=acquire_lease, args=('GPU-aaaa',)).start()
        opened.wait()
        os.fork() or time.sleep(60)
        say('forked')
        time.sleep(60)
        """
    )
    assert holder.line() == "forked"
    holder.kill()
    try:
        answer = acquire_soon("GPU-aaaa")
    finally:
        os.killpg(holder.process.pid, signal.SIGKILL)
    assert isinstance(answer, Lease)
    answer.release()


def test_threads_count_one_lease_exactly() -> None:
    together = threading.Barrier(8)
    leases: list[Lease | LeaseHolder] = []

    def take() -> None:
        together.wait()
        leases.append(acquire_lease("GPU-aaaa"))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lease,) = set(leases)
    assert isinstance(lease, Lease)
    for _ in range(7):
        lease.release()
    assert lease.held
    lease.release()
    assert not lease.held


def test_two_processes_at_one_moment_take_different_devices(start: Start) -> None:
    racer = """
        for _ in range(20):
            say('ready')
            sys.stdin.readline()
            (lease,) = acquire_first(['GPU-aaaa', 'GPU-bbbb'])
            say(lease.uuid)
            sys.stdin.readline()
            lease.release()
    """
    racers = [start(racer), start(racer)]
    for _ in range(20):
        assert [racer.line() for racer in racers] == ["ready", "ready"]
        for racer in racers:
            racer.go()
        assert {racer.line() for racer in racers} == {"GPU-aaaa", "GPU-bbbb"}
        for racer in racers:
            racer.go()


def test_of_two_that_want_all_devices_one_gets_them(start: Start) -> None:
    racer = """
        def slowly(uuids):
            for uuid in uuids:
                yield uuid
                time.sleep(0.02)
        for _ in range(20):
            say('ready')
            sys.stdin.readline()
            try:
                leases = acquire_first(slowly([{uuids}]), count=2)
            except RuntimeError:
                leases = []
            say(len(leases))
            sys.stdin.readline()
            for lease in leases: lease.release()
    """
    # In opposite orders: without one chooser at a time, each would take the other's second.
    orders = ("'GPU-aaaa', 'GPU-bbbb'", "'GPU-bbbb', 'GPU-aaaa'")
    racers = [start(racer.replace("{uuids}", uuids)) for uuids in orders]
    for _ in range(20):
        assert [racer.line() for racer in racers] == ["ready", "ready"]
        for racer in racers:
            racer.go()
        assert sorted(racer.line() for racer in racers) == ["0", "2"]
        for racer in racers:
            racer.go()


def test_too_few_devices_are_an_error_that_names_the_holders(start: Start) -> None:
    holder = start("acquire_lease('GPU-bbbb'); say('held'); time.sleep(60)")
    assert holder.line() == "held"
    with pytest.raises(NoDeviceError) as caught:
        acquire_first(UUIDS, count=3)
    assert str(caught.value).startswith(
        "3 devices were requested and 2 are free: GPU-bbbb is held by process "
        f"{holder.process.pid} since "
    )
    # Those it had taken are free again.
    assert start("say(len(acquire_first(['GPU-aaaa', 'GPU-cccc'], 2)))").line() == "2"


@posix_only
def test_a_stopped_chooser_delays_the_others_no_longer_than_it_may(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyrig.devices.lease._PATIENCE_SECONDS", 0.05)
    holder = start("with one_chooser_at_a_time(): say('choosing'); time.sleep(60)")
    assert holder.line() == "choosing"
    with one_chooser_at_a_time():
        pass


def test_choosing_may_be_nested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyrig.devices.lease._PATIENCE_SECONDS", 30)
    started = time.monotonic()
    with one_chooser_at_a_time(), acquire_first(["GPU-aaaa"])[0]:
        pass
    assert time.monotonic() - started < 15


@posix_only
def test_the_directory_is_everyones_whatever_the_umask(start: Start, directory: Path) -> None:
    assert start("os.umask(0o077); acquire_lease('MIG-GPU-a/1/0'); say('held')").line() == "held"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o1777
    (file,) = directory.iterdir()
    assert file.name == "MIG-GPU-a_1_0.lock"
    assert stat.S_IMODE(file.stat().st_mode) == 0o666


@posix_only
@pytest.mark.parametrize(
    "trap", ["directory link", "file link", "hard link", "pipe", "folder", "file", "file above"]
)
def test_what_others_put_in_the_way_is_refused(
    directory: Path, trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock = directory / "GPU-aaaa.lock"
    if trap == "directory link":
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    elif trap == "file":
        directory.write_text("no directory")
    elif trap == "file above":
        directory = victim / "leases"
        monkeypatch.setenv("ANYRIG_LEASE_DIRECTORY", str(directory))
    else:
        directory.mkdir()
        if trap == "file link":
            lock.symlink_to(victim)
        elif trap == "hard link":
            lock.hardlink_to(victim)
        elif trap == "folder":
            lock.mkdir()
        else:
            os.mkfifo(lock)
    with pytest.raises(LeaseDirectoryError) as caught:
        acquire_lease("GPU-aaaa")
    assert str(caught.value).startswith(
        f"the directory of device leases, {directory}, cannot be used: "
    )
    assert "ANYRIG_LEASE_DIRECTORY" in str(caught.value)
    assert victim.read_text() == "precious"


@posix_only
@pytest.mark.skipif(os.name == "posix" and os.getuid() != 0, reason="only root can be two users")
def test_another_users_file_can_be_locked(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of one user in the directory of another, which `fs.protected_regular` guards."""
    with tempfile.TemporaryDirectory() as everyones:
        Path(everyones).chmod(0o755)  # the directories of pytest are closed to other users
        directory = Path(everyones) / "leases"
        monkeypatch.setenv("ANYRIG_LEASE_DIRECTORY", str(directory))
        with acquire_lease("GPU-aaaa"):
            pass
        os.chown(directory, 12345, 12345)
        os.chown(directory / "GPU-aaaa.lock", 12346, 12346)
        other = start("os.setuid(23456); say(type(acquire_lease('GPU-aaaa')).__name__)")
        assert other.line() == "Lease"


@posix_only
@pytest.mark.skipif(os.name == "posix" and os.getuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_named(directory: Path) -> None:
    directory.mkdir(mode=0o555)
    with pytest.raises(LeaseDirectoryError, match="Permission denied"):
        acquire_lease("GPU-aaaa")


def test_a_lock_file_that_was_removed_is_made_again(start: Start, directory: Path) -> None:
    with acquire_lease("GPU-aaaa"):
        pass
    (directory / "GPU-aaaa.lock").unlink()
    lease = acquire_lease("GPU-aaaa")
    assert isinstance(lease, Lease)
    assert start("say(type(acquire_lease('GPU-aaaa')).__name__)").line() == "LeaseHolder"
    lease.release()


@posix_only
def test_a_lock_on_a_file_that_was_removed_meanwhile_does_not_count(
    monkeypatch: pytest.MonkeyPatch, start: Start, directory: Path
) -> None:
    lock = lease_file._lock

    def lock_too_late(descriptor: int) -> None:
        monkeypatch.undo()
        (directory / "GPU-aaaa.lock").unlink()
        lock(descriptor)

    monkeypatch.setattr(lease_file, "_lock", lock_too_late)
    lease = acquire_lease("GPU-aaaa")
    assert isinstance(lease, Lease)
    monkeypatch.setenv("ANYRIG_LEASE_DIRECTORY", str(directory))
    assert start("say(type(acquire_lease('GPU-aaaa')).__name__)").line() == "LeaseHolder"
    lease.release()


@posix_only
def test_a_file_that_is_removed_while_it_is_held_gives_no_second_holder(
    start: Start, directory: Path
) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux has the sockets that keep the name of a removed file")
    holder = start("lease = acquire_lease('GPU-aaaa'); say('held'); sys.stdin.readline()")
    assert holder.line() == "held"
    for _ in range(2):
        (directory / "GPU-aaaa.lock").unlink(missing_ok=True)
        assert acquire_lease("GPU-aaaa") == LeaseHolder(None, None, None)
    (directory / "GPU-aaaa.lock").write_text("{}")  # anyone may make it anew
    assert acquire_lease("GPU-aaaa") == LeaseHolder(None, None, None)
    holder.kill()
    lease = acquire_lease("GPU-aaaa")
    assert isinstance(lease, Lease)
    lease.release()


FORGED = [
    {"pid": 7, "host": "node3", "since": 10**20},
    {"pid": 7, "host": "node3", "since": 253402300800},  # the year 10000
    {"pid": 7, "host": "node3", "since": -(10**20)},
    {"pid": 7, "host": "node3", "since": True},
]


def test_nothing_that_a_file_says_is_believed_unseen(start: Start, directory: Path) -> None:
    holder = start("acquire_lease('GPU-aaaa'); say('held'); sys.stdin.readline()")
    assert holder.line() == "held"
    file = directory / "GPU-aaaa.lock"
    for said in FORGED:
        file.write_text(json.dumps(said))
        assert str(acquire_lease("GPU-aaaa")) == "process 7 on node3"
    for pid in (0, -1, 2**40, True, "7", 7.5, None, [7]):
        file.write_text(json.dumps({"pid": pid, "host": "node3", "since": 1}))
        assert str(acquire_lease("GPU-aaaa")) == "an unknown process"
    for host in ("\x1b[2J", "a b", "node3\n", "", "x" * 129, 3, "n\u00f6de"):
        file.write_text(json.dumps({"pid": 7, "host": host}, ensure_ascii=False))
        assert str(acquire_lease("GPU-aaaa")) == "process 7"
    for text in (b"[" * 10**6, b"\xff" * 300, b"", b"null", b"9" * 10**6, b'{"pid": 1e999}'):
        file.write_bytes(text)
        assert acquire_lease("GPU-aaaa") == LeaseHolder(None, None, None)


@posix_only
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_directory_in_which_others_can_remove_leases_is_refused(
    mode: int, directory: Path
) -> None:
    directory.mkdir()
    directory.chmod(mode)
    expected = f"its mode is {mode:04o}, so others can remove the leases in it.*chmod 1777"
    with pytest.raises(LeaseDirectoryError, match=expected):
        acquire_lease("GPU-aaaa")
    assert list(directory.iterdir()) == []
    directory.chmod(mode | stat.S_ISVTX)
    with acquire_lease("GPU-aaaa") as lease:
        assert lease.held


@pytest.mark.skipif(sys.platform != "linux", reason="the name of a process is changed in /proc")
def test_the_name_of_a_process_reaches_no_terminal_unseen(start: Start) -> None:
    other = start("open('/proc/self/comm', 'w').write('\\x1b[2Jtrain'); say('named')")
    assert other.line() == "named"
    assert process_name(other.process.pid) == "?[2Jtrain"


def test_a_lease_shows_whether_it_is_held() -> None:
    lease = acquire_lease("GPU-aaaa")
    assert repr(lease) == "<Lease of GPU-aaaa, held>"
    lease.release()
    assert repr(lease) == "<Lease of GPU-aaaa, released>"
    lease.release()
    assert not lease.held
