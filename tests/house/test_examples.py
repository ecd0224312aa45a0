"""Every example runs, as the commands at its top say."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forked_programs import run_anyrig, run_forked

EXAMPLES = Path(__file__).parents[2] / "examples"


def rehearse(name: str, *words: str, rig: str = "2xT4", flags: tuple[str, ...] = ()) -> str:
    done = run_anyrig("rehearse", "--rig", rig, *flags, str(EXAMPLES / name), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_here() -> None:
    # tests/cli/test_slurm.py submits slurm.sh.
    tested = {"digits.csv.gz", "slurm.sh", *re.findall(r'"(\w+\.\w+)"', Path(__file__).read_text())}
    assert {file.name for file in EXAMPLES.iterdir() if file.is_file()} <= tested


def test_one_device() -> None:
    done = run_forked(str(EXAMPLES / "device_agnostic.py"), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"loss (\S+)", done.stdout)
    assert float(losses[-1]) < 0.05 < float(losses[0])


def test_digits_are_learnt() -> None:
    done = run_forked(str(EXAMPLES / "digits.py"), "--device", "cpu", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.8, done.stdout


def test_data_parallel() -> None:
    out = rehearse("data_parallel.py")
    parts = "\tin model on cuda:{}: input (15, 5), output (15, 2)"
    assert out.count(parts.format(1)) == 3
    assert out.count(parts.format(0)) >= 3  # the first call also tries halves of its part
    assert out.count("outside: input (30, 5), output (30, 2)") == 3
    assert "outside: input (10, 5), output (10, 2)" in out


def test_the_model_by_hand_and_the_pipeline_compute_the_same() -> None:
    by_hand, pipeline = re.findall(r"loss (\S+)", rehearse("model_parallel.py"))[:2]
    assert abs(float(by_hand) - float(pipeline)) < 2e-6
    alone = run_forked(str(EXAMPLES / "model_parallel.py"))
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "the model needs two devices; try" in alone.stderr


def test_copies_that_do_not_wait_are_faster() -> None:
    out = rehearse("pinned_copies.py", rig="RTX-4090")
    waits, pinned, prefetched = (float(text) for text in re.findall(r"(\S+) ms$", out, re.M))
    assert waits > pinned > prefetched


def test_a_run_continues_on_other_devices(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path / "runs"))
    whole = rehearse("resume_elsewhere.py", "--steps", "6", "--folder", str(tmp_path / "whole"))
    first = run_forked(str(EXAMPLES / "resume_elsewhere.py"), "--steps", "3", *folder)
    assert first.stdout.startswith("from step 0 on cpu "), first.stderr
    second = rehearse("resume_elsewhere.py", "--steps", "6", *folder)
    assert second.startswith("from step 3 on cuda:0 (Tesla T4), cuda:1 ")
    assert second.splitlines()[-1] == whole.splitlines()[-1]


def test_what_runs_out_of_memory_is_explained() -> None:
    script = str(EXAMPLES / "out_of_memory.py")
    done = run_anyrig("rehearse", "--rig", "1GiB", "--assume-values", script)
    assert done.returncode == 1
    assert "OutOfMemoryError at out_of_memory.py:" in done.stderr
    assert "Remedies, with what each saves" in done.stderr
    small = rehearse("out_of_memory.py", "--batch-size", "1", flags=("--assume-values",))
    assert small.startswith("mean loss ")


def test_an_old_program_is_migrated_and_runs(tmp_path: Path) -> None:
    script = tmp_path / "old_training.py"
    shutil.copy(EXAMPLES / "old_training.py", script)
    assert run_forked(str(script)).returncode == 1
    migrated = run_anyrig("migrate", str(script))
    assert migrated.returncode == 0, migrated.stderr
    done = run_forked(str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("predictions torch.Size([8])\n")


def test_one_script_on_two_nodes() -> None:
    text = (EXAMPLES / "two_nodes.sh").read_text()
    words = re.findall(r"anyrig rehearse --rig '(\S+)' --nproc-per-device 1 (\S+)", text)
    assert words == [("2x(2xT4)@10Gbit/s", "one_script.py")]
    out = rehearse("one_script.py", rig=words[0][0], flags=("--nproc-per-device", "1"))
    alone = run_forked(str(EXAMPLES / "one_script.py"))
    assert re.findall(r"loss \S+", out) == re.findall(r"loss \S+", alone.stdout)


def test_two_launchers(tmp_path: Path) -> None:
    """The second half of the script: its first half is rehearsed above, in forked processes."""
    text = (EXAMPLES / "two_nodes.sh").read_text()
    script = tmp_path / "two_nodes.sh"
    script.write_text(re.sub(r"^anyrig rehearse .*$", "", text, flags=re.M))
    shutil.copy(EXAMPLES / "one_script.py", tmp_path)
    command = tmp_path / "anyrig"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m anyrig "$@"\n')
    command.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "PORT": "0"}
    import socket

    with socket.create_server(("localhost", 0)) as server:
        environment["PORT"] = str(server.getsockname()[1])
    done = subprocess.run(
        ["bash", str(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("after 300 samples") == 1


def run_cells(name: str, folder: Path) -> str:
    """Run a notebook's cells as a script; return what it prints."""
    notebook = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if "outputs" in cell)
    script = folder / "cells.py"
    script.write_text("\n".join(cells))
    done = run_forked(str(script))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_notebook(tmp_path: Path) -> None:
    printed = run_cells("notebook.ipynb", tmp_path)
    assert re.search(r"^loss \S+ on cuda:0 \(Tesla T4\), cuda:1 ", printed, re.M)
    assert printed.endswith("2 ranks\n")


def test_the_notebook_of_data_parallelism(tmp_path: Path) -> None:
    """In a notebook: tests/parallel/engines/processes/test_notebook.py."""
    printed = run_cells("data_parallel.ipynb", tmp_path)
    assert printed.count("\tin the model: input (5, 5), output (5, 2)") == 2
    assert "outside: input (10, 5), output (10, 2), loss " in printed


@pytest.mark.parametrize(
    ("name", "package", "rig", "printed"),
    [
        ("trainer.py", "transformers", "2xT4", r"cuda:0: loss \d+\.\d+ after 3 steps"),
        ("lightning_trainer.py", "lightning", "2xT4", r"cuda:0: 5 steps"),
    ],
)
def test_trainers_of_other_libraries(name: str, package: str, rig: str, printed: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert re.search(printed, rehearse(name, rig=rig, flags=("--nproc-per-device", "1")))
