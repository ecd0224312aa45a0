"""Kernels that a program writes for Triton."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from on_a_rig import PROGRAMS, output_of

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

PROGRAM = str(PROGRAMS / "kernel_of_triton.py")
TUNED = str(PROGRAMS / "tuned_kernels.py")


def test_a_kernel_runs_in_tritons_interpreter() -> None:
    assert output_of("-m", "anyrig", "rehearse", "--rig", "2x1GiB", PROGRAM) == "added\n"


def test_kernels_are_tuned_and_measured() -> None:
    assert output_of("-m", "anyrig", "rehearse", "--rig", "2xA100-80GB", TUNED) == "tuned\n"
