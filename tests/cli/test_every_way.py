"""One unchanged script gives the same numbers in every way to run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forked_programs import run_forked

SCRIPT = Path(__file__).parents[2] / "examples" / "one_script.py"
ANYRIG = ["-m", "anyrig"]
TWO_ON_THE_CPU = ["--device", "cpu", "--nproc-per-device", "2"]

WAYS = {
    "python": [str(SCRIPT)],
    "anyrig run": [*ANYRIG, "run", *TWO_ON_THE_CPU, str(SCRIPT)],
    "torchrun": [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(SCRIPT),
    ],
    "anyrig rehearse": [
        *ANYRIG,
        "rehearse",
        "--rig",
        "(T4)+(A100-80GB)",
        "--nnodes",
        "2",
        str(SCRIPT),
    ],
}

# The cells of a notebook: their definitions are in a __main__ that is not a file, and the cells use
# torch before they launch ranks.
NOTEBOOK = f"""
{SCRIPT.read_text()}
import math
assert math.isclose(anyrig.launch(train, rig="cpu", nproc_per_device=2), train(), rel_tol=1e-9)
"""


WAYS["notebook"] = ["-c", NOTEBOOK]
SLOW_WAYS = {"torchrun"}  # which starts the same ranks as anyrig run


def output_of(way: str) -> set[str]:
    """Return the lines that the ranks print, without their labels."""
    ended = run_forked(*WAYS[way], timeout=180)  # the ranks are new processes
    assert ended.returncode == 0, ended.stderr
    return {line.removeprefix("[rank 0] ") for line in ended.stdout.splitlines()}


@pytest.fixture(scope="module")
def expected() -> str:
    """Return what the script prints in one process."""
    (line,) = output_of("python")
    assert re.fullmatch(r"loss 0\.\d{9} after 300 samples", line)  # three epochs of a hundred
    return line


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=pytest.mark.sweep if way in SLOW_WAYS else ())
        for way in WAYS
        if way != "python"
    ],
)
def test_one_script(way: str, expected: str) -> None:
    assert output_of(way) == {expected}
