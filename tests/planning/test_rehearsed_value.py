"""One rehearsal of a fit: as `anyrig rehearse` finds, without what takes time."""

from __future__ import annotations

import json
from pathlib import Path

from anyrig.planning.rehearsed_value import Order
from forked_programs import run_anyrig, run_forked

PROGRAM = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for x in DataLoader(torch.ones(80, 64), int(sys.argv[1])):
    loss = model(x.cuda()).sum()
    if loss > 0:  # a value that nobody has
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_brief_rehearsal_finds_the_same_steps_and_memory(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    program = {"name": str(script), "arguments": ["8"], "is_module": False}
    file = tmp_path / "brief.json"
    done = run_forked(*Order(program, "T4", 3, None, {}).words(file))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    brief = json.loads(file.read_text())
    flags = ["--shape-only", "--assume-values", "--steps", "3", "--json", str(tmp_path / "whole")]
    done = run_anyrig("rehearse", "--rig", "T4", *flags, str(script), "8")
    assert done.returncode == 0, done.stderr
    whole = json.loads((tmp_path / "whole").read_text())
    for same in ("devices", "typical_step", "memory", "step_interval", "rig", "arguments"):
        assert brief[same] == whole[same]
    assert len(brief["steps"]) == 3
    assert whole["intervals"]["kind"]
    assert whole["findings"]
    assert (whole["shape_only"], whole["assume_values"]) == (True, True)
    assert (brief["intervals"]["kind"], brief["findings"]) == ([], [])


def test_the_command_of_an_order_rehearses_the_same() -> None:
    program = {"name": "train.py", "arguments": ["a b"], "is_module": False}
    order = Order(program, "2xT4", 3, "step", {"PLAN": "Replicas()"}, 2)
    assert order.command == (
        "PLAN='Replicas()' anyrig rehearse --assume-values --rig 2xT4 --nproc-per-node 2 "
        "--step-marker step train.py 'a b'"
    )


def test_a_rig_that_cannot_be_rehearsed_gives_no_facts(tmp_path: Path) -> None:
    file = tmp_path / "none.json"
    program = {"name": "nowhere.py", "arguments": [], "is_module": False}
    done = run_forked(*Order(program, "T44", 3, None, {}).words(file))
    assert done.returncode == 2
    assert done.stderr.startswith("anyrig: error: no GPU is called 'T44'")
    assert not file.exists()
