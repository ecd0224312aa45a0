"""The report of a rehearsal's virtual time, and of the known errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from anyrig.hardware import known_errors, program_errors, spec_of_key
from anyrig.virtual.known_errors import errors_text, program_errors_text

PROGRAM = """
import torch

x = torch.ones(256, 256, device="cuda")
(x @ x).relu()
torch.cuda.synchronize()
"""


def test_a_rehearsal_reports_its_times_and_their_known_errors(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "anyrig",
        "rehearse",
        "--rig",
        "2xA100-80GB+T4+1GiB",
        "--times",
    ]
    finished = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == ""
    lines = finished.stderr.splitlines()
    assert lines[0].startswith("virtual time: 0.")
    assert lines[0].endswith(" ms")
    assert any(line.startswith("cuda:0 kernels: products 0.0") for line in lines)
    assert not any(line.startswith("cuda:1 kernels") for line in lines)
    errors = [line for line in lines if line.startswith("median error of ")]
    assert errors == [errors_text(spec_of_key(key)) for key in ("A100-80GB", "T4")]
    programs = [line for line in lines if line.startswith("mean error of whole programs on ")]
    assert programs == [program_errors_text(spec_of_key(key)) for key in ("A100-80GB", "T4")]
    assert lines[-1] == "the times of a GPU that is given by its size alone predict nothing"


def test_errors_are_stated_or_said_to_be_unknown() -> None:
    spec = spec_of_key("A100-80GB")
    error = known_errors(spec)["products"]
    assert f"products {error:g} %" in errors_text(spec)
    assert errors_text(replace(spec, key="A100-of-tomorrow")) == (
        "median error of A100-of-tomorrow's times where measured: unknown; no measured "
        "kernels of this GPU have been compared"
    )


def test_errors_of_whole_programs_are_stated_by_kind_or_said_to_be_unknown() -> None:
    spec = spec_of_key("T4")
    (errors,) = program_errors(spec)
    assert program_errors_text(spec) == (
        "mean error of whole programs on T4: float32 language models, inference "
        f"{errors.mean:g} % (of 5, the largest {errors.largest:g} %)"
    )
    assert program_errors_text(replace(spec, key="T5")) == (
        "mean error of whole programs on T5: unknown; no measured programs have been compared"
    )
