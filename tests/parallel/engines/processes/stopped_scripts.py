"""Stops scripts that train with replicas in processes at random moments; checks what is left.

``python stopped_scripts.py SIGNAL TIMES SEED FOLDER`` prints, for each script, its exit status and
after how many seconds nothing of it was left. An interrupted script first goes on to train.

A script is a fork of this process, which has imported torch; the workers are new processes.
"""

from __future__ import annotations

import copy
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from anyrig.parallel.engines.processes.pool import pool_of_process
from anyrig.process_end import end_process

sys.path.insert(0, str(Path(__file__).parents[2]))
from left_processes import LIMIT_SECONDS, MARK, files_of, processes_of, wait_for_end
from process_pairs import Pair

STARTING_SECONDS = 2.0  # about as long as a worker takes to start
STEPS_SECONDS = 0.2


def train(announce: Callable[[str], None]) -> None:
    """Train until an interrupt; go on after it."""
    pair = Pair()
    try:
        announce("starts")
        pair.step()
        announce("steps")
        while True:
            pair.step()
    except KeyboardInterrupt:
        announce("was interrupted")
    # The interrupted step may have changed one of both.
    pair.one.load_state_dict(pair.several.state_dict())
    one, several = pair.optimizers
    one.load_state_dict(copy.deepcopy(several.state_dict()))
    for _ in range(3):
        pair.step()
    assert len(pool_of_process()._workers) == 1


class Script:
    """A script in a process of its own, and what it announces."""

    def __init__(self, folder: Path) -> None:
        self._reader, writer = os.pipe()
        self.process = os.fork()
        if self.process:
            os.close(writer)
            return
        status = 1
        try:
            os.environ[MARK] = str(os.getpid())
            os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
            train(lambda what: os.write(writer, f"{what}\n".encode()) and None)
            status = 0
        except BaseException:
            traceback.print_exc()
        end_process(status)

    def wait_for(self, what: str, seconds: float) -> bool:
        """Return whether the script announces this in time."""
        if not select.select([self._reader], [], [], seconds)[0]:
            return False
        found = os.read(self._reader, 100).decode()
        assert found.startswith(what), f"{found!r} instead of {what!r}"
        return True

    def close(self) -> None:
        os.close(self._reader)


def stop_once(sent: signal.Signals, during: str, delays: random.Random, folder: Path) -> None:
    """Start a script, stop it while it starts or while it steps, and print what was found."""
    script = Script(folder)
    assert script.wait_for("starts", LIMIT_SECONDS)
    if during == "steps":
        assert script.wait_for("steps", LIMIT_SECONDS)
    time.sleep(delays.uniform(0, STARTING_SECONDS if during == "starts" else STEPS_SECONDS))
    started = processes_of(str(script.process))
    os.kill(script.process, sent)
    if sent == signal.SIGINT:
        assert script.wait_for("was interrupted", LIMIT_SECONDS)
    _, status = os.waitpid(script.process, 0)
    seconds = wait_for_end(str(script.process))
    script.close()
    assert files_of([script.process, *started], folder) == []
    print(os.waitstatus_to_exitcode(status), len(started), f"{seconds:.2f}", flush=True)


def main(sent: str, times: int, seed: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    delays = random.Random(seed)
    for time_ in range(times):
        stop_once(signal.Signals[sent], ("steps", "starts")[time_ % 2], delays, folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
