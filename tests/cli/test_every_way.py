"""One unchanged script gives the same numbers in every way to run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "one_script.py"
ANYRIG = ["-m", "anyrig"]
TWO_ON_THE_CPU = ["--device", "cpu", "--nproc-per-device", "2"]

WAYS = {
    "python": [str(SCRIPT)],
    "anyrig run": [*ANYRIG, "run", *TWO_ON_THE_CPU, str(SCRIPT)],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT],
    "anyrig rehearse": [*ANYRIG, "rehearse", "--rig", "(T4)+(A100-80GB)", "--nnodes", "2", SCRIPT],
}

# The cells of a notebook: their definitions are in a __main__ that is not a file, and the cells use
# torch before they launch ranks.
NOTEBOOK = f"""
{SCRIPT.read_text()}
import math
assert math.isclose(anyrig.launch(train, rig="cpu", nproc_per_device=2), train(), rel_tol=1e-9)
"""


def test_one_script_in_every_way() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    losses: dict[str, set[str]] = {}
    for way, arguments in {**WAYS, "notebook": ["-"]}.items():
        ended = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            input=NOTEBOOK if way == "notebook" else None,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert ended.returncode == 0, f"{way}: {ended.stderr}"
        losses[way] = {line.removeprefix("[rank 0] ") for line in ended.stdout.splitlines()}
    (loss,) = losses["python"]
    assert loss.startswith("loss 0.")
    assert loss.endswith(" after 300 samples")  # three epochs of a hundred, over all ranks
    assert losses == {way: {loss} for way in losses}
