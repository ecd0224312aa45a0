"""Kernels that a program writes for Triton."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from on_a_rig import PROGRAMS, output_of

PROGRAM = str(PROGRAMS / "kernel_of_triton.py")


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_a_kernel_runs_in_tritons_interpreter() -> None:
    assert output_of("-m", "anyrig", "rehearse", "--rig", "2x1GiB", PROGRAM) == "added\n"
