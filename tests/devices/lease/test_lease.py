"""Leases on devices, between real processes."""

import os
import signal
import socket
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from lease_holder import Start, posix_only

from anyrig.devices.lease import Lease, LeaseHolder, acquire_lease
from anyrig.devices.lease_file import open_locked


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


def open_locked_soon(path: Path) -> int | None:
    """Open and lock a file, trying for a while, like ``acquire_soon``."""
    deadline = time.monotonic() + 5
    while (descriptor := open_locked(path)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return descriptor


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
        choosing = open_locked_soon(directory / "choosing.lock")
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


def test_a_lease_shows_whether_it_is_held() -> None:
    lease = acquire_lease("GPU-aaaa")
    assert repr(lease) == "<Lease of GPU-aaaa, held>"
    lease.release()
    assert repr(lease) == "<Lease of GPU-aaaa, released>"
    lease.release()
    assert not lease.held
