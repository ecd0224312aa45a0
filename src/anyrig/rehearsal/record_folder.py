"""The folder in which the processes of a rehearsal leave their records for the one report.

::

    anyrig rehearse ── makes the folder, names it in ANYRIG_RECORDS
       ├─ rank 0 ───── records from its import of torch on, writes 0-4711.record when it ends
       ├─ rank 1 ───── 1-4712.record; 4712.running, locked as long as it runs; 4712.uses-gpu
       └─ waits for processes that run longer, reads the files of all, removes the folder, reports

Only the user can read or write the folder, and a process checks that before it writes. The folder
of a rehearsal that was killed stays until the user's next rehearsal on this machine.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .process_record import ProcessRecord

VARIABLE = "ANYRIG_RECORDS"
_STEPS_VARIABLE = "ANYRIG_RECORDS_STEPS"
_SUFFIX = ".record"
_PREFIX = "anyrig-records"
_RUNNING = ".running"
_IMPORTED = ".imported"
_USES_GPU = ".uses-gpu"
# A process that has imported torch and uses no GPU for this long is not waited for.
_START_SECONDS = 2.0
_PAUSE_SECONDS = 0.02
# Before this, nobody notices that the report waits.
_QUIET_SECONDS = 1.0


@dataclass(frozen=True)
class RecordFolder:
    """The folder of one rehearsal."""

    path: Path

    @classmethod
    @contextmanager
    def shared(cls, most_steps: int | None = None) -> Iterator[RecordFolder]:
        """Make a folder for the processes that the block starts, and remove it after the block.

        With `most_steps`, these processes end after this many steps.
        """
        with cls.made() as folder:
            os.environ[VARIABLE] = str(folder.path)
            if most_steps is not None:
                os.environ[_STEPS_VARIABLE] = str(most_steps)
            try:
                yield folder
            finally:
                os.environ.pop(VARIABLE, None)
                os.environ.pop(_STEPS_VARIABLE, None)

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[RecordFolder]:
        """Make a folder for the block, and remove it then."""
        path, lock = _new_folder()
        try:
            yield cls(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)

    def note_running(self) -> None:
        """Note that this process runs, from its import of torch until it ends.

        The descriptor stays open for that. Unlike a lock of `flock`, the lock does not pass to
        forked processes.
        """
        fcntl.lockf(self._make(_RUNNING), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def note_import(self) -> None:
        """Note that this process has imported torch."""
        os.close(self._make(_IMPORTED))

    def note_gpu(self) -> None:
        """Note that this process uses a GPU."""
        os.close(self._make(_USES_GPU))

    def _make(self, suffix: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.path / f"{os.getpid()}{suffix}", flags, 0o600)

    def await_others(self, most_seconds: float) -> list[int]:
        """Wait for the processes that use a GPU, and return the ids of those that run longer.

        A program may start ranks without waiting for them. Its daemons, such as workers of data
        loaders, end with the program and are not waited for. A process that uses no GPU soon does
        not count.
        """
        began, has_said = time.monotonic(), False
        while running := sorted(self._find_running() - _daemons()):
            seconds = time.monotonic() - began
            running = [each for each in running if self._may_use_gpu(each)]
            if not running or seconds >= most_seconds:
                break
            if seconds >= _QUIET_SECONDS and not has_said:
                has_said = True
                sys.stderr.write(
                    f"anyrig: the report waits up to {most_seconds:.0f} s for "
                    f"{_name_processes(running)}, for which the program did not wait\n"
                )
            time.sleep(_PAUSE_SECONDS)
        if running:
            sys.stderr.write(
                f"anyrig: the report misses {_name_processes(running)}, which still "
                f"{'runs' if len(running) == 1 else 'run'}; let the program wait for what it "
                "starts\n"
            )
        return running

    def _may_use_gpu(self, process: int) -> bool:
        """Return whether a process uses a GPU, or has begun to import torch a moment ago."""
        if (self.path / f"{process}{_USES_GPU}").exists():
            return True
        try:
            imported = (self.path / f"{process}{_IMPORTED}").stat().st_mtime
        except FileNotFoundError:
            return True
        return time.time() - imported < _START_SECONDS

    def _find_running(self) -> set[int]:
        return {
            int(file.stem)
            for file in self.path.glob(f"*{_RUNNING}")
            if file.stem.isdecimal() and _is_locked(file)
        }

    def read_all(self) -> list[ProcessRecord]:
        """Return the records in the folder, in the order of ranks.

        If a rank was restarted, only its last record counts. Processes without a rank are numbered
        after the others.
        """
        from .record_file import read_record_file

        files = sorted(self.path.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)
        records = [read_record_file(file) for file in files]
        ranked = {one.rank: one for one in records if one.rank >= 0}
        others = [one for one in records if one.rank < 0]
        next_rank = max(ranked, default=-1) + 1
        return [
            *(ranked[rank] for rank in sorted(ranked)),
            *(replace(one, rank=next_rank + i) for i, one in enumerate(others)),
        ]

    def write(self, process: ProcessRecord) -> None:
        """Write the record of this process, if the folder is still there and ours alone."""
        from .record_file import write_record

        if _is_ours(self.path):
            name = f"{process.rank}-{os.getpid()}{_SUFFIX}"
            write_record(self.path / name, process)


def note_running_process() -> None:
    """Note that this process of a rehearsal has begun to import torch."""
    path = os.environ.get(VARIABLE)
    if path is not None:
        with suppress(OSError):  # the rehearsal has ended
            RecordFolder(Path(path)).note_running()


def record_for_report() -> None:
    """Record this process from now on, and leave the record when the process ends.

    Does nothing without ``ANYRIG_RECORDS``. Call this after the rig is installed.
    """
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    from .watching import Watch

    steps = os.environ.get(_STEPS_VARIABLE)
    watching = Watch(None if steps is None else int(steps))
    watching.start()
    owner = os.getpid()

    folder = RecordFolder(Path(path))

    def note_gpu() -> None:
        with suppress(OSError):  # the rehearsal has ended
            folder.note_gpu()

    with suppress(OSError):
        folder.note_import()
    _when_cuda_starts(note_gpu)

    def leave() -> None:
        if os.getpid() != owner:
            return  # a forked process has the records of its parent
        watching.stop()
        try:
            record = watching.record(int(os.environ.get("RANK", "-1")))
            if record.devices:  # a worker of a data loader has none
                folder.write(record)
        except OSError as error:
            sys.stderr.write(f"anyrig: this process is missing from the report: {error}\n")

    atexit.register(leave)


def _when_cuda_starts(action: Callable[[], None]) -> None:
    import torch

    # Private, as in `devices.cuda_start`: there is no public hook.
    torch.cuda._lazy_call(action)  # type: ignore[no-untyped-call]


def _is_locked(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _daemons() -> set[int]:
    """Return this process, and the processes that end with it."""
    own = {os.getpid()}
    module = sys.modules.get("multiprocessing")
    if module is not None:
        own |= {each.pid for each in module.active_children() if each.daemon and each.pid}
    return own


def _name_processes(numbers: Sequence[int]) -> str:
    named = ", ".join(map(str, numbers))
    return f"process {named}" if len(numbers) == 1 else f"processes {named}"


def _new_folder() -> tuple[Path, int]:
    """Return a new folder, and the descriptor by which this process locks it.

    Removes the folders of rehearsals that were killed, which are locked by no process.
    """
    prefix = f"{_PREFIX}-{os.getuid()}-"
    for abandoned in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            _remove_unless_locked(abandoned)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):  # another rehearsal removed it before it was locked
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def _remove_unless_locked(folder: Path) -> None:
    if not _is_ours(folder):
        return
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(file)


def _is_ours(folder: Path) -> bool:
    """Return whether `folder` is a real folder that only this user can use."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    others = found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others
