"""An interrupt while a file is read is an interrupt, and no damaged file."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from types import FrameType

import pytest
import torch
from safetensors.torch import save_file

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
