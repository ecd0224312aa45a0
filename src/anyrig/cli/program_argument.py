"""The argument that names the program of `anyrig run` and `anyrig rehearse`."""

from __future__ import annotations

from pathlib import Path

import typer

# No file system has longer paths; a message shows no more of one than this.
_MOST_SHOWN = 60


def check_program(name: str, *, is_module: bool) -> None:
    """Refuse a name of which it is plain, before anything starts, that no program can have it.

    Whether a module is there is found out as the interpreter does: by importing its packages.

    Raises:
        typer.BadParameter: there is no such script, or no module can be called that.
    """
    reason = _why_no_module(name) if is_module else _why_no_script(name)
    if reason is not None:
        shown = name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}…"
        raise typer.BadParameter(reason.format(repr(shown)), param_hint="SCRIPT")


def _why_no_module(name: str) -> str | None:
    if name == "__main__":
        return "{} after -m is the program itself; name a module, such as package.train"
    if not all(name.split(".")) or "\0" in name:
        return "{} after -m cannot be a module's name; write for example package.train"
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
    except (OSError, ValueError) as error:  # too long a name, or a zero byte in it
        return f"{missing} ({getattr(error, 'strerror', None) or error})"
    return None
