"""The help of every command fits a terminal and describes every flag."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.rich_utils

from anyrig.cli.app import app, main
from anyrig.cli.completion import complete_rig
from anyrig.cli.first_hour import FIRST_HOUR
from anyrig.cli.flag_errors import nearest_flags
from anyrig.cli.help_screen import FIRST_FLAGS
from anyrig.cli.script_command import ScriptCommand


def commands_of(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and its subcommands, each with the words that call it."""
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands_of(child, (*words, name))


COMMANDS = dict(commands_of(typer.main.get_command(app)))


@pytest.fixture
def anyrig(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `anyrig` with these words on a terminal of 80 columns; return its status and its text."""
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 80)

    def run(*words: str) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["anyrig", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        return ended.value.code, written.out + written.err

    return run


@pytest.mark.parametrize("wanted", ["--help", "--help-all"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_a_terminal(words: tuple[str, ...], wanted: str, anyrig: Any) -> None:
    name = " ".join(words)
    if wanted == "--help-all" and name not in FIRST_FLAGS:
        return  # `--help` shows all
    status, text = anyrig(*name.split(), wanted)
    assert status == 0
    assert max(map(len, text.splitlines())) <= 80
    if wanted == "--help":
        assert len(text.splitlines()) <= 50  # one screen
    usage = text.strip().splitlines()[0]
    assert " ".join([*words, "[OPTIONS]"]) in usage
    assert ("SCRIPT [ARGS]..." in usage) is isinstance(COMMANDS[words], ScriptCommand)
    for parameter in COMMANDS[words].params:
        if getattr(parameter, "hidden", False):
            continue
        for flag in parameter.opts:
            assert (flag if flag.startswith("-") else parameter.metavar) in text
        assert len(parameter.help.split()) >= 3, parameter.name  # a sentence
        assert parameter.help.endswith("."), parameter.name
    page = re.search(r"More about it: (\S+)", text)
    assert page is not None
    assert (Path(__file__).parents[2] / page[1]).is_file()


@pytest.mark.parametrize("name", FIRST_FLAGS)
def test_what_help_explains_first_are_flags_of_the_command(name: str, anyrig: Any) -> None:
    command = COMMANDS[(name,)]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert set(FIRST_FLAGS[name]) <= flags
    first, full = (anyrig(*name.split(), wanted)[1] for wanted in ("--help", "--help-all"))
    assert "--help-all explains these flags too: " in first
    assert "explains these flags too" not in full
    assert len(full.splitlines()) > len(first.splitlines())
    assert first.count("--role") == ("--role" in flags)


def test_alone_it_names_the_commands_to_begin_with(anyrig: Any) -> None:
    assert anyrig() == (0, FIRST_HOUR)
    shown = re.findall(r"^  anyrig (\w+)", FIRST_HOUR, re.MULTILINE)
    assert len(shown) == 5
    assert {(name,) for name in shown} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("rehearse --rigs 2xT4 x.py", "--rig"),
        ("rehearse --gpus 2 x.py", "--rig or --device or --nproc-per-node"),
        ("rehearse --hazards x.py", "--watch hazards"),
        ("run --nproc 2 x.py", "--nproc-per-node or --nproc-per-device"),
        ("run --nproc_per_nodes 2 x.py", "--nproc-per-node"),
        ("devices --jsn", "--json"),
        ("checkpoint show --jsn x", "--json"),
        ("virtual build --agin", "--again"),
        ("rehearse --fail x.py", "anyrig rehearse fail"),
    ],
)
def test_an_unknown_flag_names_the_nearest(line: str, near: str, anyrig: Any) -> None:
    status, text = anyrig(*line.split())
    assert status == 2
    said = " ".join(re.sub("[\u2500-\u257f]", "", text).split())
    assert said.endswith(f". Did you mean {near}?")


def test_the_nearest_flag_is_always_one_of_the_command() -> None:
    for command in COMMANDS.values():
        flags = [flag for parameter in command.params for flag in parameter.opts]
        for unknown in ("--gpus", "--world-size", "--x", "--cpu"):
            (near, *_) = nearest_flags(unknown, flags)
            assert near.split()[0] in [*flags, "--help"]


def test_a_shell_completes_commands_and_flags() -> None:
    def complete(line: str) -> list[str]:
        words = line.split(" ")
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        done = subprocess.run(
            [sys.executable, "-c", "from anyrig.cli.app import app; app(prog_name='anyrig')"],
            env={**os.environ, **asked, "_ANYRIG_COMPLETE": "complete_bash"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.split("\n")

    assert "rehearse" in complete("anyrig rehe")
    assert "--rig" in complete("anyrig rehearse --ri")
    assert "2xH200-SXM" in complete("anyrig rehearse --rig 2xH2")


def test_a_rig_is_completed_at_its_last_gpu() -> None:
    assert complete_rig("A100-4") == ["A100-40GB"]
    assert complete_rig("A100-40GB+2xh200") == ["A100-40GB+2xH200-SXM"]
    assert complete_rig("2x(8xT4") == ["2x(8xT4"]
    assert "T4" in complete_rig("")
    assert complete_rig("2xNone") == []


def test_all_commands_are_known() -> None:
    assert [" ".join(words) for words in COMMANDS] == [
        "",
        "devices",
        "doctor",
        "run",
        "rehearse",
        "rehearse compare",
        "rehearse fail",
        "verify",
        "fit",
        "plan",
        "check",
        "migrate",
        "virtual",
        "virtual build",
        "virtual measure-launch",
        "checkpoint",
        "checkpoint show",
        "checkpoint verify",
        "checkpoint diff",
        "checkpoint convert",
        "checkpoint consolidate",
    ]
