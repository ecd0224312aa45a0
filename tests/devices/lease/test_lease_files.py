"""The files of leases and their directory: who may write there, what is removed, what is forged."""

import json
import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from lease_holder import Start, posix_only

from anyrig.devices import lease_file
from anyrig.devices.lease import Lease, LeaseHolder, acquire_lease
from anyrig.devices.process import process_name
from anyrig.errors import LeaseDirectoryError


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
