"""The dtype of mixed precision in out-of-memory reports and in rehearsed remedies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anyrig.programs.program import Program
from anyrig.rehearsal.remedies.rehearsed import rehearse_remedies
from anyrig.virtual.rig import VirtualRig
from forked_programs import run_anyrig

ON_ONE_GPU = """
import sys, torch
from torch import nn
layers = [nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(4)]
model = nn.Sequential(*layers).to(sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(int(sys.argv[2]), 1024, device=sys.argv[1])).float().sum().backward()
optimizer.step()
"""
# PyTorch 2.15 for CUDA 13 has no kernels for a V100.
FLAGS = ["--shape-only", "--without-kernels"]
SCALED = '; train with torch.amp.GradScaler("cuda")'
HALF_OF_RIGS = pytest.mark.parametrize(
    ("rig", "device", "samples", "half"),
    [
        ("V100-16GB", "cuda:0", "900000", f'"cuda", torch.float16): output = model(…){SCALED}'),
        ("A100-40GB+T4", "cuda:1", "900000", f'"cuda", torch.float16): output = model(…){SCALED}'),
        ("T4+A100-40GB", "cuda:1", "2200000", '"cuda", torch.bfloat16): output = model(…)'),
    ],
    ids=["V100", "T4", "A100"],
)


@HALF_OF_RIGS
def test_mixed_precision_is_tried_in_the_dtype_that_the_gpu_multiplies(
    rig: str, device: str, samples: str, half: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_ONE_GPU)
    program = Program(str(script), (device, samples))
    names = ["mixed precision"]
    savings = rehearse_remedies(program, VirtualRig.parse(rig), os.environ, names)
    (saving,) = savings.of_remedies
    assert saving.advice == (f"with torch.autocast({half}",)
    assert saving.time_fraction is not None
    assert saving.time_fraction < 0.5


@HALF_OF_RIGS
def test_the_report_has_the_dtype_that_the_gpu_multiplies(
    rig: str, device: str, samples: str, half: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_ONE_GPU)
    run = run_anyrig("rehearse", "--rig", rig, *FLAGS, str(script), device, samples)
    assert f": mixed precision: with torch.autocast({half}\n" in run.stderr


@HALF_OF_RIGS
def test_the_report_of_explain_oom_has_the_dtype_that_the_gpu_multiplies(
    rig: str, device: str, samples: str, half: str, tmp_path: Path
) -> None:
    before, call, rest = ON_ONE_GPU.partition("model(torch.ones")
    indented = f"{call}{rest}".replace("\n", "\n        ")
    script = tmp_path / "train.py"
    script.write_text(
        f"{before}from anyrig.memory import explain_oom\ntry:\n    with explain_oom():\n"
        f"        {indented}\nexcept torch.OutOfMemoryError as error:\n    print(error.report)\n"
    )
    run = run_anyrig("rehearse", "--rig", rig, *FLAGS, str(script), device, samples)
    assert f": mixed precision: with torch.autocast({half}\n" in run.stdout, run.stderr
