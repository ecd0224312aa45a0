"""A group of ranks that fails, and a check of what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(__file__).with_name("rank_program.py")
RUN = [sys.executable, "-m", "anyrig", "run"]

_MARK = "TEST_GROUP"


class FailingGroup:
    """One launcher with its ranks, or several, each on its own node.

    Attributes:
        launchers: one per node.
        folder: the launchers' working folder, with their temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self._mark = uuid.uuid4().hex
        self.folder = folder
        self.temporary = folder / "temporary"
        self.ready = folder / "ready"
        for each in (self.temporary, self.ready):
            each.mkdir(parents=True, exist_ok=True)
        self.launchers: list[subprocess.Popen[str]] = []

    def start(
        self,
        *words: str,
        ranks: int = 3,
        flags: Sequence[str] = (),
        before: Sequence[str] = (),
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a launcher of `ranks` ranks that run the program with `words`."""
        given = {
            _MARK: self._mark,
            "TMPDIR": str(self.temporary),
            "TEST_READY": str(self.ready),
            "TEST_SAVED": str(self.folder / "saved"),
            "OMP_NUM_THREADS": "1",
        }
        if command is None:
            command = [*RUN, "--device", "cpu", "--nproc-per-device", str(ranks)]
        number = len(self.launchers)
        with (
            (self.folder / f"output-{number}").open("w") as output,
            (self.folder / f"errors-{number}").open("w") as errors,
        ):
            launcher = subprocess.Popen(
                [*before, *command, *flags, str(PROGRAM), *words],
                stdout=output,
                stderr=errors,
                text=True,
                env=os.environ | given | dict(environment or {}),
                start_new_session=True,  # a terminal's: a signal can be sent to its foreground
            )
        self.launchers.append(launcher)
        return launcher

    def wait_ready(self, ranks: int, seconds: float = 90) -> list[int]:
        """Wait until all ranks have joined the group; return their process ids."""
        ends = time.monotonic() + seconds
        files = [self.ready / str(rank) for rank in range(ranks)]
        while not all(file.is_file() and file.read_text() for file in files):
            for launcher, number in zip(self.launchers, range(9), strict=False):
                assert launcher.poll() is None, self.errors(number)
            assert time.monotonic() < ends, "the ranks did not meet"
            time.sleep(0.02)
        return [int(file.read_text()) for file in files]

    def wait(self, seconds: float = 60) -> float:
        """Wait until no process of the group is left; return how long that took."""
        began = time.monotonic()
        while self.left():
            assert time.monotonic() < began + seconds, f"left: {self.left()}"
            time.sleep(0.05)
            for launcher in self.launchers:
                launcher.poll()
        for launcher in self.launchers:
            launcher.wait(30)
        return time.monotonic() - began

    def left(self) -> dict[int, str]:
        """Return the living processes that descend from a launcher, and their commands."""
        found = {}
        mark = f"{_MARK}={self._mark}".encode()
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        words = (process / "cmdline").read_bytes().split(b"\0")
                        found[int(process.name)] = b" ".join(words).decode()
            except OSError:
                continue
        return found

    def errors(self, number: int = 0) -> str:
        """Return what a launcher wrote to standard error."""
        return (self.folder / f"errors-{number}").read_text()

    def output(self, number: int = 0) -> str:
        """Return what the ranks of a launcher wrote to standard output."""
        return (self.folder / f"output-{number}").read_text()

    def message(self, number: int = 0) -> list[str]:
        """Return the lines of a launcher's last message of its own."""
        return self.errors(number).rpartition("anyrig: ")[2].splitlines()

    def litter(self) -> list[str]:
        """Return the remaining temporary files that no message names."""
        named = "".join(self.errors(number) for number in range(len(self.launchers)))
        return [
            str(file)
            for file in self.temporary.iterdir()
            # PyTorch's cache of kernels stays; the next rehearsal removes a killed one's GPUs.
            if f"{file}/" not in named
            and not file.name.startswith(("torchinductor", "anyrig-rehearsal"))
        ]

    def end(self) -> None:
        """Kill the processes that are left."""
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        for launcher in self.launchers:
            launcher.wait(30)


@contextmanager
def failing_group(folder: Path) -> Iterator[FailingGroup]:
    """Yield a group, and kill its remaining processes afterwards."""
    group = FailingGroup(folder)
    try:
        yield group
    finally:
        group.end()
