"""`anyrig fit`, from the command line to its table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anyrig.virtual.library_cache import cache_folder
from forked_programs import run_anyrig

# 1 GiB of parameters, gradients and moments, and 64 MiB of activations for each sample.
TRAINS = """
import argparse
flags = argparse.ArgumentParser()
flags.add_argument("--batch-size", type=int, default=4)
flags.add_argument("--lr", type=float)
given = flags.parse_args()
import anyrig, torch
from torch import nn

model = nn.Linear(8192, 8192, bias=False).cuda()
optimizer = torch.optim.Adam(model.parameters(), given.lr)
batch = given.batch_size * anyrig.fit_value("times", 1)
while True:
    x = torch.ones(batch * 1024, 8192, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the script. Results go to a cache of the test's own."""
    own = tmp_path / "cache" / "anyrig"
    own.mkdir(parents=True, mode=0o755)
    (own / "virtual").symlink_to(cache_folder())  # or each test would build virtual GPUs
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(TRAINS)
    return tmp_path


def run_fit(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_anyrig("fit", *words, cwd=cwd, timeout=180)


def test_the_largest_batch_on_several_rigs_and_the_same_question_again(folder: Path) -> None:
    (folder / "prices.toml").write_text('currency = "EUR"\n[per_hour]\nT4 = 0.35\nL4 = 9.9\n')
    flags = ["--rig", "T4,L4,1GiB", "--vary", "--batch-size=8..8", "--prices", "prices.toml"]
    words = [*flags, "--json", "fit.json", "train.py", "--lr", "1"]
    done = run_fit(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    head, first, _, third, note, _, answer = done.stdout.splitlines()
    assert head.split()[:3] == ["rig", "--batch-size", "fits"]
    assert "EUR per million samples" in head
    assert first.split()[:3] == ["T4", "8", "certain,"]
    assert "MiB too little with --batch-size=8" in third
    assert note == "T4: 8 is the end of the range, and a larger value may fit, too"
    assert answer.startswith("the cheapest: T4 with --batch-size=8, ")
    assert "anyrig: rehearsing on L4 with --batch-size=8\n" in done.stderr  # the largest first
    assert "anyrig: rehearsing on T4 with --batch-size=8; 1 of 3 rigs are done\n" in done.stderr
    written = json.loads((folder / "fit.json").read_text())
    assert (written["format"], written["command"]) == ("anyrig-fit", ["train.py", "--lr", "1"])
    assert written["variation"] == {"name": "--batch-size", "first": 8, "last": 8}
    (found,) = written["answers"]
    assert (found["winner"]["rig"], found["winner"]["by"], found["given"]) == ("T4", "price", {})
    t4, _, small = found["rigs"]
    assert (t4["verdict"], t4["certain_value"], t4["kept_results"]) == ("certain", 8, 0)
    best = t4["tried"][-1]
    assert best["samples_per_second"] == pytest.approx(8 / best["step_seconds"])
    assert small["verdict"] == "no"
    again = run_fit(*words, cwd=folder)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert again.stderr == ""  # nothing was rehearsed
    written = json.loads((folder / "fit.json").read_text())
    rows = written["answers"][0]["rigs"]
    assert [row["kept_results"] for row in rows] == [row["rehearsals"] for row in rows]


def test_a_named_value_of_the_script_varies(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINS.replace("while True", "assert batch == 40\nwhile True"))
    done = run_fit("--rig", "T4", "--vary", "times=10..10", "train.py", "--lr", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:3] == ["T4", "10", "certain,"]


def test_a_second_value_doubles_and_has_a_table_each(folder: Path) -> None:
    flags = ["--rig", "T4", "--vary", "times=1..1", "--vary", "--batch-size=100..199"]
    done = run_fit(*flags, "--json", "fit.json", "train.py", "--lr", "1", cwd=folder)
    assert done.returncode == 0, done.stderr  # one of the two fits for certain
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("with ")] == [
        "with --batch-size=100:",
        "with --batch-size=199:",
    ]
    assert "anyrig: rehearsing on T4 with --batch-size=199 times=1\n" in done.stderr
    answers = json.loads((folder / "fit.json").read_text())["answers"]
    assert [one["given"] for one in answers] == [{"--batch-size": 100}, {"--batch-size": 199}]
    assert [one["rigs"][0]["certain_value"] for one in answers] == [1, None]
    flags = ["--rig", "T4", "--vary", "--batch-size=4..4", "--vary", "UNREAD=1..2"]
    done = run_fit(*flags, "train.py", "--lr", "1", cwd=folder)
    assert done.returncode == 2
    assert "train.py takes the same memory and time with UNREAD=1 and UNREAD=2" in done.stderr


def test_a_script_that_fails_at_once(folder: Path) -> None:
    flags = ["--rig", "T4,L4", "--vary", "--batchsize=1..8"]
    done = run_fit(*flags, "train.py", "--lr", "1", cwd=folder)
    assert done.returncode == 2
    assert "train.py does not take --batchsize: " in done.stderr
    assert "unrecognized arguments: --batchsize=1; name a flag of the script" in done.stderr
    assert done.stderr.count("rehearsing on") == 1
    (folder / "train.py").write_text("raise KeyError('HOME_OF_DATA')")
    done = run_fit("--rig", "T4", "train.py", cwd=folder)
    assert done.returncode == 2
    assert "train.py failed on T4 before it used a GPU: KeyError at train.py:1" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rig", "T4,T44", "train.py"], "--rig: no GPU is called 'T44'"),
        (["train.py"], "no rig is given; write --rig"),
        (["train.py", "--rig", "T4"], "--rig stands after the script, whose flag it is then"),
        (["--rig", "T4", "--vary", "--n=8..1", "train.py"], "8..1 of --n is reversed"),
        (["--rig", "T4", "--vary", "--n=", "train.py"], "the range is empty"),
        (
            ["--rig", "T4", "--vary", "--n=1..2", "--vary", "--n=3..4", "train.py"],
            "--n varies twice; give one range for it",
        ),
        (["--rig", "T4", "nowhere.py"], "there is no script 'nowhere.py'"),
        (["--rig", "T4", "--json", "no/file", "train.py"], "no is not a folder"),
        (["--rig", "T4", "--prices", "none.toml", "train.py"], "cannot be read as TOML"),
        (["--rig", "T4", "--step-marker", "1", "train.py"], "--step-marker"),
    ],
)
def test_odd_flags_are_refused(words: list[str], message: str, folder: Path) -> None:
    done = run_fit(*words, cwd=folder)
    assert done.returncode == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert message in said


def test_ctrl_c_prints_the_best_so_far(folder: Path) -> None:
    script = 'import os, time\nif os.environ["BATCH"] != "1": time.sleep(100)\n'
    (folder / "train.py").write_text(script + TRAINS)
    varies = ["--vary", "BATCH=1..64", "--vary", "OTHER=1..2"]
    words = ["fit", "--rig", "T4", *varies, "train.py", "--lr", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "anyrig", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        while "BATCH=8" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.5)  # until the script sleeps
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; this is the best so far" in errors
    assert "Traceback" not in errors
    given, _, line = output.splitlines()
    assert given == "with OTHER=1:"
    assert line.split()[:2] == ["T4", "1"]
    assert "left, stopped" in line


def test_sigterm_ends_the_rehearsals_and_leaves_no_folder(folder: Path) -> None:
    temporary = folder / "temporary"
    temporary.mkdir()
    (folder / "train.py").write_text("import torch, time\nopen('begun', 'w')\ntime.sleep(100)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "anyrig", "fit", "--rig", "T4", "train.py"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (folder / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()  # the command alone, and not what it has started
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert (output, "Traceback" in errors) == ("", False)
    assert [*temporary.iterdir()] == []
