"""`checkpoint_blocks` keeps a step within its budget, in the least time, and changes no result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

GIB = 2**30


def test_twenty_budgets_against_every_choice() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import recomputed_models; recomputed_models.compare()"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(lines) == 2
    for found in lines:
        every = {tuple(chosen): measured for chosen, measured in found["every"]}
        assert len(every) == 16
        for peak_bytes, _, predicted_bytes in every.values():
            assert peak_bytes <= predicted_bytes <= 1.01 * peak_bytes
        assert max(each[0] for each in every.values()) > 1.3 * every[0, 1, 2, 3][0] > GIB / 2
        assert len(found["choices"]) == 20
        for budget_bytes, chosen in found["choices"]:
            peak_bytes, seconds, _ = every[tuple(chosen)]
            assert peak_bytes <= budget_bytes
            best = min(seconds for peak, seconds, _ in every.values() if peak <= budget_bytes)
            assert seconds <= 1.001 * best
        assert len({tuple(chosen) for _, chosen in found["choices"]}) > 4
        for budget_bytes, chosen, peak_bytes, measured in found["plans"]:
            assert [budget_bytes, chosen] in found["choices"]
            assert every[tuple(chosen)][0] <= peak_bytes <= budget_bytes
            assert measured <= budget_bytes
