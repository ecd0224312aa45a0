"""The main thread of a rank writes its stack before it continues."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

from anyrig.processes.places import place_of, read_place, request_stacks

# If any thread could take the signal, about one rank in four would report `go_on`.
PROGRAM = """
import os, signal, threading, time
from anyrig.processes.places import write_stack_on_request

def suspend():
    os.kill(os.getpid(), signal.SIGSTOP)

def go_on():
    while True:
        pass

write_stack_on_request()
for _ in range(8):
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
suspend()
go_on()
"""
TRIES = 12


def test_a_suspended_rank_reports_where_it_was_suspended(tmp_path: Path) -> None:
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        rank = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")},
        )
        try:
            os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            request_stacks({rank.pid: folder})
            place = read_place(folder)
        finally:
            rank.kill()
            rank.wait()
        assert place is not None
        assert place.line.endswith("in suspend")


WAITING = """
import sys, time
from anyrig.processes.places import write_stack_on_request
from anyrig.processes.waits import waits_for_ranks

write_stack_on_request()
print("ready", flush=True)
(waits_for_ranks(time.sleep) if sys.argv[1] == "wait" else time.sleep)(30)
"""


@pytest.mark.parametrize("way", ["wait", "work"])
def test_a_marked_function_counts_as_a_wait(way: str, tmp_path: Path) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", WAITING, way],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")},
        stdout=subprocess.PIPE,
    )
    assert rank.stdout is not None
    with rank, rank.stdout as output:
        try:
            assert output.readline() == b"ready\n"
            place = None
            while place is None or place.line != "<string>:8 in <module>":  # it may still print
                request_stacks({rank.pid: tmp_path})
                place = read_place(tmp_path)
        finally:
            rank.kill()
    assert place.waits is (way == "wait")


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_backward_pass_counts_as_a_wait(way: str) -> None:
    model = nn.Linear(2, 2)
    loss = model(torch.ones(2)).sum()
    loss.backward()
    fail = loss.backward if way == "backward" else lambda: model(torch.ones(3))  # the graph is gone
    with pytest.raises(RuntimeError) as raised:
        fail()
    place = place_of("".join(traceback.format_exception(raised.value)))
    assert place is not None
    assert "test_places.py" in place.line
    assert place.waits is (way == "backward")


@pytest.mark.parametrize("folder", ["torch", "anyrig", "torch/distributed"])
def test_a_program_may_lie_in_a_folder_of_the_same_name(folder: str) -> None:
    inner = f'  File "{Path(torch.__file__).parent}/nn/modules/linear.py", line 1 in forward\n'
    own = f'  File "/home/me/{folder}/train.py", line 7, in step\n'
    place = place_of(own + inner)
    assert place is not None
    assert (place.line, place.waits) == (f"/home/me/{folder}/train.py:7 in step", False)
