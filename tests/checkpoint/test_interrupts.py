"""An interrupt of a read is no damaged file, and an interrupt of a wait ends no save."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from anyrig.checkpoint.background_saver import _Writing
from anyrig.checkpoint.foreign.safetensors_file import read_safetensors


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
