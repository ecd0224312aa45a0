"""A command line, such as ``torchrun train.py``, as the Python program that it starts."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .program_argument import check_program

if TYPE_CHECKING:
    from ..rehearsal.program import Program

_PYTHON = re.compile(r"python(3(\.\d+)?)?")


def read_command(words: list[str], *, is_module: bool, is_python: bool = True) -> Program:
    """Return the program that `words` name, to be run in this process.

    Args:
        words: a script or, with `is_module`, a module, and its arguments. Without `is_module` they
            may also be what a shell takes: ``python train.py``, ``python -m train``, or a command
            written in Python such as ``torchrun``, ``accelerate`` or ``anyrig run``.
        is_module: the first word is a module's name.
        is_python: the first word is not that of another program, which may be Python all the same.

    Raises:
        typer.BadParameter: there is no such program, or Python has flags that this process, which
            is running already, cannot take.
    """
    from ..rehearsal.program import Program

    name, *arguments = words
    if not is_python:
        check_program(name, is_module=is_module, is_python=False)
        if not _PYTHON.fullmatch(Path(name).name):
            command = shutil.which(name)
            if command is None or not _is_python_script(Path(command)):
                raise typer.BadParameter(
                    f"{name!r} is no Python program, and virtual GPUs are in Python processes only",
                    param_hint="--no-python",
                )
            return Program(command, tuple(arguments))
        return _read_python(arguments)
    if not (is_module or os.path.exists(name)):  # noqa: PTH110 - Path's raises for odd names
        if name == sys.executable or _PYTHON.fullmatch(name):
            return _read_python(arguments)
        if (
            "\0" not in name
            and (command := shutil.which(name))
            and _is_python_script(Path(command))
        ):
            return Program(command, tuple(arguments))
    check_program(name, is_module=is_module)
    return Program(name, tuple(arguments), is_module=is_module)


def _read_python(words: list[str]) -> Program:
    """Return the program that ``python`` followed by `words` runs."""
    words = [*words]
    while words and words[0] == "-u":  # to see output at once; a terminal shows it at once anyway
        del words[0]
    is_module = bool(words) and words[0] == "-m"
    words = words[is_module:]
    if not words or (words[0].startswith("-") and not is_module):
        shown = words[0] if words else "nothing"
        raise typer.BadParameter(
            f"after python comes a script, or -m and a module, and this is {shown}; other flags of "
            "Python belong to the Python that runs anyrig: python -X … -m anyrig rehearse …",
            param_hint="SCRIPT",
        )
    return read_command(words, is_module=is_module)


def _is_python_script(path: Path) -> bool:
    with path.open("rb") as file:
        return re.match(rb"#!.*python", file.readline(200)) is not None
