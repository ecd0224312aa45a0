"""Runs the tests of `on_lone_rank` in a separate process, as rank 0 of 16 ranks that do not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyrig.errors import VirtualRigError
from anyrig.virtual.lone_rank import check_lone_rank
from anyrig.virtual.rig import VirtualRig
from forked_programs import WATCH
from watched_process import VARIABLE

FOLDER = Path(__file__).parent / "on_lone_rank"
# Two nodes, with another network than the default.
RIG = "2x(8xH100-SXM)@25GB/s"


def test_as_one_rank_of_many() -> None:
    watch = [WATCH] if VARIABLE in os.environ else []
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER), *watch],
        env={**os.environ, "ANYRIG_TEST_LONE_RIG": RIG, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]


@pytest.mark.parametrize(
    ("rig", "shape_only", "why"),
    [
        ("2xT4", False, "needs shape_only=True"),
        ("T4", True, "has one GPU"),
        ("T4+L4", True, "are not"),
        ("(2xT4)+(T4)", True, "are not"),
    ],
)
def test_one_rank_cannot_stand_for_all(rig: str, shape_only: bool, why: str) -> None:
    with pytest.raises(VirtualRigError, match=why):
        check_lone_rank(VirtualRig.parse(rig), shape_only=shape_only)
