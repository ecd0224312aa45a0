"""`anyrig.launch`: a function in new processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anyrig.errors import LaunchError
from anyrig.parallel.launch import launch

# What a notebook's cell and a script without a guard have in common: __main__ cannot be imported.
UNGUARDED = """
import anyrig.parallel.launch as parallel
import torch.distributed as dist

class Answer:
    def __init__(self, total): self.total = total

def work(start, *, step):
    import torch
    dist.init_process_group("gloo")
    total = torch.tensor([float(start + step * dist.get_rank())])
    dist.all_reduce(total)
    return Answer(total.item())

print("answer", parallel.launch(work, (1,), {"step": 10}, rig="cpu", nproc_per_device=2).total)
"""


def test_a_function_of_an_unguarded_script(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.splitlines() == ["answer 12.0"], ended.stderr


def test_an_exception_comes_back_with_its_rank_and_traceback() -> None:
    def divide() -> float:
        return 1 / int(os.environ["RANK"])

    with pytest.raises(LaunchError, match=r"rank 0 on .* failed \(exit code 1\)") as caught:
        launch(divide, rig="cpu", nproc_per_device=2)
    assert "in divide" in str(caught.value)
    assert "ZeroDivisionError" in str(caught.value)


def test_what_cannot_be_sent_is_said() -> None:
    lock = threading.Lock()

    def hold() -> None:
        lock.acquire()

    with pytest.raises(LaunchError, match=r"hold cannot be sent .*lock.*Make what it needs inside"):
        launch(hold, rig="cpu")
