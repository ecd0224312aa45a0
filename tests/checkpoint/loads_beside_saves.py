"""Loads from a series again and again while another process saves to it with ``keep=1``.

``python loads_beside_saves.py FOLDER LOADS`` prints the steps that were found.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
from torch import nn

import anyrig


def save_in_a_loop(folder: Path) -> None:
    model, step = nn.Linear(64, 64), 1
    while True:
        step += 1
        nn.init.constant_(model.weight, step)
        anyrig.save(folder, model=model, step=step, keep=1)


def main(folder: Path, loads: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    model = nn.Linear(64, 64)
    nn.init.constant_(model.weight, 1)
    anyrig.save(folder, model=model, step=1)
    child = os.fork()
    if child == 0:
        try:
            save_in_a_loop(folder)
        finally:
            traceback.print_exc()
            os._exit(1)
    try:
        until = time.monotonic() + 60
        while anyrig.load(folder, model=model).step == 1 and time.monotonic() < until:
            pass  # the other process begins
        for _ in range(loads):
            found = anyrig.load(folder, model=model).step
            assert (model.weight == found).all()
            print(found, flush=True)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the process that saves ended by itself"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
