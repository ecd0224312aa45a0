"""The program that a rehearsal with `--no-python` runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import typer

from anyrig.cli.command_line import read_command
from anyrig.programs.program import Program


def test_a_program_that_is_python_all_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    for python in ("python3", sys.executable):
        found = read_command([python, "-u", str(script), "a"], is_module=False, is_python=False)
        assert found == Program(str(script), ("a",))
    command = tmp_path / "train"
    command.write_text("#!/usr/bin/env python3\n")
    command.chmod(0o755)
    found = read_command([str(command), "-m"], is_module=False, is_python=False)
    assert found == Program(str(command), ("-m",))


def test_a_program_that_cannot_have_virtual_gpus() -> None:
    with pytest.raises(typer.BadParameter, match=r"'sh' is not a Python program, and virtual GPUs"):
        read_command(["sh", "-c", "true"], is_module=False, is_python=False)


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", ""])
def test_a_name_that_is_no_path(name: str) -> None:
    for is_python in (False, True):
        with pytest.raises(typer.BadParameter, match=r"there is no (script|program)"):
            read_command([name], is_module=False, is_python=is_python)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("torchrun", "write -m torch.distributed.run instead"),
        ("train", "install it, or write its path"),
    ],
)
def test_a_command_that_is_not_in_path(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    text = f"there is no script '{name}' and no command of that name in PATH; {remedy}"
    with pytest.raises(typer.BadParameter, match=re.escape(text)):
        read_command([name, "--standalone", "train.py"], is_module=False)


def test_a_command_that_comes_after_its_flags() -> None:
    with pytest.raises(typer.BadParameter, match=r"flags after the word: anyrig rehearse compare"):
        read_command(["compare", "train.py"], is_module=False)


@pytest.mark.parametrize("name", ["train.py", "./train", "a" * 61, "-train", "é"])
def test_a_name_that_no_command_has_is_that_of_a_missing_script(name: str) -> None:
    with pytest.raises(typer.BadParameter, match="there is no script") as refusal:
        read_command([name], is_module=False)
    assert "PATH" not in refusal.value.message


def test_a_command_that_is_not_python_is_not_called_missing(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter) as refusal:
        read_command(["sh", "train.py"], is_module=False)
    assert "no command of that name" not in refusal.value.message
