"""cuDNN attention of nested tensors, which an environment variable of PyTorch enables."""

from __future__ import annotations

import pytest
from on_a_rig import PROGRAMS, run

PROGRAM = str(PROGRAMS / "nested_cudnn.py")
ENABLED = {"TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED": "1"}


@pytest.mark.parametrize("arguments", [(PROGRAM,), ("--shape-only", PROGRAM, "shapes")])
def test_sequences_of_several_lengths(arguments: tuple[str, ...]) -> None:
    rehearse = ("-m", "anyrig", "rehearse", "--rig", "1xH100-SXM")
    finished = run("-W", "ignore", *rehearse, *arguments, fresh=True, **ENABLED)
    assert finished.stdout == "attended\n", finished.stdout + finished.stderr
