"""The argument that names the program of `anyrig run` and `anyrig rehearse`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from .group_flags import torchrun_option

MODULE = Annotated[
    bool,
    torchrun_option("--module", "-m", help="SCRIPT is a Python module, as in python -m."),
]

NO_PYTHON = Annotated[
    bool,
    torchrun_option(
        "--no-python", help="SCRIPT is an executable, such as bash, not a Python script."
    ),
]

ALLOW_MISSING_KERNELS = Annotated[
    bool,
    typer.Option(
        "--without-kernels",
        help="Accept GPUs for which this PyTorch has no kernels, such as a V100 with a build for "
        "CUDA 13, and go on as if it had.",
    ),
]

# Messages cut longer names.
_MOST_SHOWN = 60


def check_program(name: str, *, is_module: bool, is_python: bool = True) -> None:
    """Check, before any process starts, that `name` can name a program.

    Does not check that a module exists: that would import its parent packages.

    Raises:
        typer.BadParameter: there is no such script or executable, or `name` is not a valid module
            name.
    """
    if is_module and not is_python:
        raise typer.BadParameter(
            "-m and --no-python exclude each other: Python runs a module; give one of them",
            param_hint="--no-python",
        )
    if not is_python:
        reason = _why_no_command(name)
    else:
        reason = _why_no_module(name) if is_module else _why_no_script(name)
    if reason is not None:
        shown = name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}…"
        raise typer.BadParameter(reason.format(repr(shown)), param_hint="SCRIPT")


def rank_words(name: str, *, is_module: bool, is_python: bool = True) -> list[str]:
    """Return the arguments that name the program to `anyrig.cli.rank`."""
    if not is_python:
        return ["--no-python", name]
    return ["-m", name] if is_module else [name]


def _why_no_command(name: str) -> str | None:
    if not name or "\0" in name or shutil.which(name) is None:
        return "there is no program {} that --no-python could execute"
    return None


def _why_no_module(name: str) -> str | None:
    if name == "__main__":
        return "{} after -m is the running program itself; name a module, such as package.train"
    if not all(name.split(".")) or "\0" in name:
        return "{} after -m is not a valid module name; write for example package.train"
    return None


def _why_no_script(name: str) -> str | None:
    missing = "there is no script {}"
    if not name:
        return missing
    try:
        path = Path(name)
        if not path.exists():
            return missing
        if path.is_dir() and not any((path / f"__main__.py{c}").exists() for c in ("", "c")):
            return "{} is a folder without a __main__.py"
    except (OSError, ValueError) as error:  # the name is too long or contains a zero byte
        return f"{missing} ({getattr(error, 'strerror', None) or error})"
    return None
