"""What nvidia-smi would show during a training run, compared with published figures.

The figures are of Hugging Face's pages "Model training anatomy" and "Performance and Scalability"
(transformers 4.18): a V100 of 16 GB, in MiB, the context included.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "published_training.py"


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("arguments", "published"),
    [
        (["4", "1"], 14_949),
        (["1", "4"], 8681),
        (["1", "4", "recompute"], 6775),
    ],
    ids=["vanilla", "accumulated", "recomputed"],
)
def test_the_memory_of_a_training_is_the_published_one(
    arguments: list[str], published: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = {name: int(mib) for name, mib in map(str.split, done.stdout.splitlines())}
    assert shown["started"] == 1343
    assert shown["loaded"] == 2631
    assert shown["trained"] == pytest.approx(published, rel=0.03)
