"""Parameters that the host draws: a rehearsal without data leaves the large ones unwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forked_programs import run_anyrig, run_forked

DRAWS = """
import json, resource, torch
from torch import nn

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

with torch.no_grad():
    nn.init.normal_(nn.Parameter(torch.empty(20)))  # what the first call loads does not count
torch.manual_seed(0)
before = peak_mib()
large = nn.Linear(2900, 2900)  # 32.1 MiB
nn.init.normal_(large.weight, std=0.02)
taken = peak_mib() - before
drawn = [torch.randn(()).item()]
nn.init.normal_(nn.Parameter(torch.empty(2**22 + 5, dtype=torch.float64)))
drawn.append(torch.rand(()).item())
nn.init.uniform_(nn.Parameter(torch.empty(2**24 + 7, dtype=torch.bfloat16)))
drawn.append(torch.randn(20).sum().item())
small = nn.Linear(1024, 1024)
drawn_again = nn.init.trunc_normal_(large.weight)  # what is out of bounds
assert drawn_again is large.weight  # a module would not have another as its parameter
drawn += [torch.randn(20).sum().item(), small.weight.sum().item()]
drawn.append(torch.empty(2900, 2900).normal_().sum().item())  # no parameter
large.cuda() if torch.cuda.is_available() else None
try:
    large.weight.normal_()
except RuntimeError as error:
    drawn.append(str(error))
print(json.dumps([taken, drawn]))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "draws.py"
    path.write_text(DRAWS)
    return str(path)


def test_large_parameters_take_no_host_memory_and_the_random_numbers_stay(script: str) -> None:
    alone = run_forked(script)
    assert alone.returncode == 0, alone.stderr
    rehearsed = run_anyrig("rehearse", "--rig", "T4", "--assume-values", "--quiet", script)
    assert rehearsed.returncode == 0, rehearsed.stderr
    taken, drawn = json.loads(alone.stdout)
    less, same = json.loads(rehearsed.stdout)
    assert same == drawn
    assert "leaf Variable" in drawn[-1]
    assert taken > 28
    assert less < 8


def test_without_assumed_values_they_are_written(script: str) -> None:
    done = run_anyrig("rehearse", "--rig", "T4", "--shape-only", "--quiet", script)
    assert json.loads(done.stdout)[0] > 28
