"""An interrupted read does not count as a damaged file; an interrupted wait does not end a save."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from text_checkpoints import names_in, save

from anyrig.checkpoint.background_saver import _Writing
from anyrig.checkpoint.commit import remove_abandoned, remove_surplus
from anyrig.checkpoint.disk import Disk
from anyrig.checkpoint.foreign.safetensors_file import read_safetensors
from anyrig.checkpoint.over_ranks import Ranks
from anyrig.checkpoint.parallel_commit import ParallelCommit
from anyrig.checkpoint.series import Series


# An interrupt between the opening of a file and its `with` leaves it to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_come_out_of_a_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({f"layer {index}": torch.ones(3) for index in range(10)}, path)
    draw, interrupted = random.Random(0), 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 1e-3))
                read_safetensors(path)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 0


class SlowSave:
    """Takes the place of a save whose disk is slow."""

    ranks = SimpleNamespace(rank=0)
    parallel = None

    def write(self) -> str:
        time.sleep(0.5)
        return "folder"


def test_an_interrupted_wait_leaves_the_save_running() -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        writing = _Writing(SlowSave())  # type: ignore[arg-type]
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            writing.wait(30.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert writing.is_running
    assert writing.wait(30.0) is None
    assert (writing.is_running, writing.folder) == (False, "folder")


class InterruptedDisk(Disk):
    """Raises KeyboardInterrupt once, after an operation on a temporary folder or in it."""

    def __init__(self, operation: str) -> None:
        self.operation = operation

    def _interrupt(self, operation: str, path: Path) -> None:
        if operation == self.operation and ".tmp-" in str(path):
            self.operation = ""
            raise KeyboardInterrupt

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self._interrupt("make_folder", path)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._interrupt("rename", target)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._interrupt("unlink", path)


@pytest.mark.parametrize("operation", ["make_folder", "rename", "unlink"])
def test_the_next_save_of_the_same_process_removes_what_an_interrupt_left(
    operation: str, tmp_path: Path
) -> None:
    series = Series(tmp_path / "a")
    save(series, "first")
    with pytest.raises(KeyboardInterrupt):
        save(series, "second", keep=1, disk=InterruptedDisk(operation))
    if operation == "make_folder":  # nothing waits for another save
        assert names_in(series) == ["000001"]
    save(series, "third", keep=1)
    assert len(names_in(series)) == 1


def test_a_folder_of_several_ranks_goes_if_its_making_is_interrupted(tmp_path: Path) -> None:
    series = Series(tmp_path / "a")
    save(series, "first")
    commit = ParallelCommit(Ranks("save", 30.0), series, InterruptedDisk("make_folder"))
    with pytest.raises(KeyboardInterrupt):
        commit.begin()
    assert names_in(series) == ["000001"]


def test_a_folder_that_another_process_removes_too_is_no_problem(tmp_path: Path) -> None:
    series = Series(tmp_path / "a")
    for content in ("first", "second"):
        save(series, content)

    class Overtaken(Disk):
        def unlink(self, path: Path) -> None:
            path.unlink()
            super().unlink(path)

        def remove_folder(self, path: Path) -> None:
            path.rmdir()
            super().remove_folder(path)

    remove_surplus(series, 1, Overtaken())
    assert len(names_in(series)) == 1


def test_a_removal_that_was_cut_short_goes_on_only_when_its_new_name_is_on_the_disk(
    tmp_path: Path,
) -> None:
    series, calls = Series(tmp_path / "a"), list[str]()
    for content in ("first", "second"):
        save(series, content)
    with pytest.raises(KeyboardInterrupt):
        remove_surplus(series, 1, InterruptedDisk("rename"))

    class Noting(Disk):
        def sync_folder(self, path: Path) -> None:
            calls.append("sync")
            super().sync_folder(path)

        def unlink(self, path: Path) -> None:
            calls.append("unlink")
            super().unlink(path)

    remove_abandoned(series, Noting())
    assert calls[:2] == ["sync", "unlink"]
    assert len(names_in(series)) == 1
