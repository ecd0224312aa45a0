"""Runs the tests of `on_shapes` in a separate process, with a shape-only rig."""

from __future__ import annotations

from pathlib import Path

from forked_programs import run_pytest

FOLDER = Path(__file__).parent / "on_shapes"

# Two nodes; on the first also GPUs that have no NVLink.
RIG = "(8xA100-80GB+2xT4)+(8xA100-80GB)"


def test_on_gpus_without_data() -> None:
    finished = run_pytest(str(FOLDER), watches_tests=True, ANYRIG_TEST_SHAPES_RIG=RIG)
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
