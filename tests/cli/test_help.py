"""The help of every command fits a terminal and describes every flag."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.rich_utils

from anyrig.cli.app import app, main
from anyrig.cli.script_command import ScriptCommand


def commands_of(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and its subcommands, each with the words that call it."""
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands_of(child, (*words, name))


COMMANDS = dict(commands_of(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_a_terminal(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 80)
    monkeypatch.setattr(sys, "argv", ["anyrig", *" ".join(words).split(), "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    usage = text.strip().splitlines()[0]
    assert " ".join([*words, "[OPTIONS]"]) in usage
    assert ("SCRIPT [ARGS]..." in usage) is isinstance(COMMANDS[words], ScriptCommand)
    for parameter in COMMANDS[words].params:
        if getattr(parameter, "hidden", False):
            continue
        for name in parameter.opts:
            assert (name if name.startswith("-") else parameter.metavar) in text
        assert len(parameter.help.split()) >= 3, name  # a sentence
        assert parameter.help.endswith("."), name


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
        "checkpoint",
        "checkpoint show",
        "checkpoint verify",
        "checkpoint diff",
        "checkpoint convert",
        "checkpoint consolidate",
    ]
