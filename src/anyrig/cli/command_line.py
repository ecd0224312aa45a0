"""Parse a command line such as ``torchrun train.py`` into the Python program that it starts."""

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
    from ..programs.program import Program

# What may be the name of a command: a short word without a suffix.
_COMMAND = re.compile(r"[A-Za-z0-9][\w-]{0,59}", re.ASCII)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")


def read_command(words: list[str], *, is_module: bool, is_python: bool = True) -> Program:
    """Return the program that `words` name. It will run in this process.

    Args:
        words: a script or, with `is_module`, a module, followed by its arguments. Without
            `is_module`, a shell command is valid too: ``python train.py``, ``python -m train``, or
            a command written in Python such as ``torchrun``, ``accelerate`` or ``anyrig run``.
        is_module: whether the first word is a module's name.
        is_python: False after ``--no-python``: the first word is an executable, which must be
            Python or a script with a Python shebang line.

    Raises:
        typer.BadParameter: there is no such program, or `words` give the interpreter flags, which
            an interpreter that is already running cannot apply.
    """
    from ..programs.program import Program

    name, *arguments = words
    if not is_python:
        check_program(name, is_module=is_module, is_python=False)
        if not _PYTHON.fullmatch(Path(name).name):
            command = shutil.which(name)
            if command is None or not _is_python_script(Path(command)):
                raise typer.BadParameter(
                    f"{name!r} is not a Python program, and virtual GPUs exist only in Python "
                    "processes; name a Python script",
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
        _check_command(name)
    check_program(name, is_module=is_module)
    return Program(name, tuple(arguments), is_module=is_module)


def _check_command(name: str) -> None:
    """Refuse a name that looks like a command's, if there is no such command.

    Raises:
        typer.BadParameter: the folders of PATH have no such program, or the name is that of a
            command of anyrig.
    """
    if name in ("compare", "fail"):
        raise typer.BadParameter(
            f"there is no script {name!r}; to {name}, write the flags after the word: anyrig "
            f"rehearse {name} --rig …",
            param_hint="SCRIPT",
        )
    if not _COMMAND.fullmatch(name) or shutil.which(name):
        return
    remedy = "install it, or write its path"
    if name == "torchrun":
        remedy = "write -m torch.distributed.run instead, or its flags after anyrig rehearse"
    raise typer.BadParameter(
        f"there is no script {name!r} and no command of that name in PATH; {remedy}",
        param_hint="SCRIPT",
    )


def _read_python(words: list[str]) -> Program:
    """Return the program that ``python`` followed by `words` runs."""
    words = [*words]
    while words and words[0] == "-u":  # unbuffered output; a terminal is line-buffered anyway
        del words[0]
    is_module = bool(words) and words[0] == "-m"
    words = words[is_module:]
    if not words or (words[0].startswith("-") and not is_module):
        shown = words[0] if words else "nothing"
        raise typer.BadParameter(
            f"python must be followed by a script, or by -m and a module, not by {shown}; give "
            "Python's own flags to the Python that runs anyrig: python -X … -m anyrig rehearse …",
            param_hint="SCRIPT",
        )
    return read_command(words, is_module=is_module)


def _is_python_script(path: Path) -> bool:
    with path.open("rb") as file:
        return re.match(rb"#!.*python", file.readline(200)) is not None
