"""A program may end right after a backward pass: autograd's threads release Python first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENDS_AFTER_BACKWARD = """
import anyrig.virtual
anyrig.virtual.install("3xT4")
import torch
x = torch.ones(8, device="cuda:1", requires_grad=True)
(x * 3).sum().backward()
"""


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.sweep)])
def test_programs_that_end_at_once_after_backward(times: int) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", ENDS_AFTER_BACKWARD]
    for _ in range(times):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
