"""The reports of the programs of `failing_programs`, and what their first lines say."""

from __future__ import annotations

import json
from pathlib import Path

from forked_programs import run_forked

HERE = Path(__file__).parent
# A part of the first line for each program of `failing_programs`.
EXPECTED = {
    "large_batch": "the batch needs 1.25 GiB",
    "large_activations": "activations for a backward pass hold",
    "large_optimizer_state": "the optimizer's state",
    "cache_list": "cache keeps",
    "kept_batches": "batches keeps",
    "kept_losses": "total is a tensor with a graph",
    "kept_outputs": "outputs keeps",
    "fragmentation": (
        "fragmentation: 450.00 MiB are free in cached blocks, and the request has 300.00 MiB, but "
        "the largest free block has 5.00 MiB. Line: "
    ),
    "another_process": "other processes hold 800.00 MiB of the device's 1.00 GiB",
    "evaluation_with_gradients": "a model in evaluation mode keeps",
    "growing_recurrent_state": "carries its graph from pass to pass",
}


def reports_of(file: str) -> dict[str, str]:
    """Run a file that prints reports as JSON, and return them by the names of the programs."""
    run = run_forked(str(HERE / file))
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


def require_first_line(program: str, reports: dict[str, str]) -> None:
    """Require that a report begins with the reason, and with the line that failed."""
    first = reports[program].splitlines()[0]
    assert EXPECTED[program] in first
    assert first.endswith("# HERE")
    assert f"in {program}: " in first
