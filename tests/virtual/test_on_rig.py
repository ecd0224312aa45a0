"""Runs the tests of `on_rig` in separate processes, with a virtual rig for CUDA devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked_programs import run_pytest

FOLDER = Path(__file__).parent / "on_rig"
COMPILED = FOLDER / "test_libraries.py"  # compiles a library, which takes seconds
ARGUMENTS = {
    "libraries": [str(COMPILED)],
    "others": [str(FOLDER), f"--ignore={COMPILED}"],
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_on_eight_gpus(arguments: list[str]) -> None:
    finished = run_pytest(*arguments, watches_tests=True, ANYRIG_TEST_RIG="8xA100-80GB")
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]


def test_rules_of_hopper() -> None:
    files = [str(FOLDER / f"test_{name}.py") for name in ("temporaries", "semi_structured")]
    finished = run_pytest(*files, ANYRIG_TEST_RIG="H100-SXM")
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
