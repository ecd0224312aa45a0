"""`--device` and `--disable-cuda` in a script of one's own, run as one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ARGPARSE = """
import argparse, anyrig
parser = argparse.ArgumentParser()
anyrig.add_device_arguments(parser)
print(anyrig.rig_from_arguments(parser.parse_args()).reason)
"""
TYPER = """
import anyrig, typer
def main(device: anyrig.DeviceOption = None, disable_cuda: anyrig.DisableCudaOption = False):
    print(anyrig.rig_from_options(device, disable_cuda).reason)
typer.run(main)
"""


@pytest.fixture(params=[ARGPARSE, TYPER], ids=["argparse", "typer"])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(request.param)
    return path


def run(script: Path, *arguments: str, word: str | None = None) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "ANYRIG_DEVICE"}
    if word is not None:
        environment["ANYRIG_DEVICE"] = word
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "word", "reason"),
    [
        (["--device", "cpu"], None, "named by 'cpu'"),
        (["--disable-cuda"], None, "named by 'cpu'"),
        (["--disable-cuda", "--device", "cpu"], None, "named by 'cpu'"),
        ([], "cpu", "named by 'cpu'"),
        (["--device", "cpu"], "cuda:77", "named by 'cpu'"),
        (["--disable-cuda"], "cuda:77", "named by 'cpu'"),
    ],
)
def test_flag_then_environment(script: Path, arguments: list, word: str, reason: str) -> None:
    done = run(script, *arguments, word=word)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{reason}\n", "")


@pytest.mark.parametrize("text", ["cuda: 0", "cuda:77", "gpu0", ""])
@pytest.mark.parametrize("by_flag", [True, False])
def test_bad_text_ends_the_script_with_2(script: Path, text: str, by_flag: bool) -> None:
    done = run(script, "--device", text) if by_flag else run(script, word=text)
    source = "--device" if by_flag else "ANYRIG_DEVICE"
    assert done.returncode == 2
    assert done.stderr.startswith(f"train.py: error: {source}: cannot take {text!r} as devices: ")
    assert done.stderr.count("\n") == 1
    assert "There are: " in done.stderr


def test_flags_that_contradict_each_other(script: Path) -> None:
    done = run(script, "--disable-cuda", "--device", "cuda:0")
    assert done.returncode == 2
    assert "--disable-cuda and --device cuda:0 contradict each other" in done.stderr


def test_help_shows_both(script: Path) -> None:
    help_text = run(script, "--help").stdout
    assert "--device" in help_text
    assert "--disable-cuda" in help_text
