"""`--libraries`: the clock takes the time of an older library's kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anyrig.hardware import older_kernels, spec_of_key
from forked_programs import run_anyrig

ROWS = 32 * 196
PROGRAM = f"""
import torch
norm = torch.nn.LayerNorm(1024, device="cuda", dtype=torch.float16)
x = torch.ones({ROWS}, 1024, device="cuda", dtype=torch.float16)
optimizer = torch.optim.SGD(norm.parameters(), 0.1)
for _ in range(3):
    with torch.no_grad():
        for _ in range(100):
            norm(x)
    optimizer.step()
"""


def rehearse(folder: Path, *flags: str) -> tuple[float, str]:
    """Return how long the program's typical step takes, and the summary."""
    script, facts = folder / "train.py", folder / "facts.json"
    script.write_text(PROGRAM)
    words = ("--shape-only", "--without-kernels", *flags, "--json", str(facts), str(script))
    done = run_anyrig("rehearse", "--rig", "V100-32GB", *words)
    assert done.returncode == 0, done.stderr
    return float(json.loads(facts.read_text())["typical_step"]["seconds"]), done.stderr


def test_a_layer_norm_of_an_older_pytorch_takes_longer_for_each_row(tmp_path: Path) -> None:
    today, summary = rehearse(tmp_path)
    assert "by --libraries" not in summary
    older, summary = rehearse(tmp_path, "--libraries", "torch=1.7")
    assert "kernels are timed as those of torch=1.7, by --libraries" in summary
    volta, (kernels,) = spec_of_key("V100-32GB"), older_kernels()
    assert volta.clock_hertz is not None
    rows_at_once = volta.multiprocessors * volta.clock_hertz / kernels.adds
    assert older - today == pytest.approx(100 * ROWS / rows_at_once, rel=0.01)
    assert older / 100 == pytest.approx(180e-6, rel=0.05)  # what the source measured


@pytest.mark.parametrize("command", [("rehearse",), ("rehearse", "compare")])
def test_unknown_libraries_are_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = run_anyrig(*command, "--rig", "T4", "--libraries", "1.7", str(tmp_path / "train.py"))
    assert done.returncode == 2
    assert "--libraries: cannot read '1.7' as versions of torch" in " ".join(done.stderr.split())
