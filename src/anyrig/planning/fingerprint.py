"""What the result of a rehearsal depends on, as a hash."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

from .. import __version__
from ..programs.program import Program

# What differs between two terminals and hardly between two rehearsals.
_OF_TERMINAL = frozenset({"_", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"})
_PREFIXES_OF_TERMINAL = ("SSH_", "TERM", "TMUX", "VSCODE_", "XDG_SESSION")
# A larger file is named in an argument as data rather than as a configuration.
_MOST_BYTES = 2**20


def fingerprint(program: Program, environment: Mapping[str, str]) -> str:
    """Return a hash of a program and of what it runs with.

    It covers the script, the modules of its folder that it imports, files that its arguments name,
    the arguments, the folder, the environment variables, and the versions of Python, anyrig and all
    installed packages. It does not cover data, and modules that are imported in other ways.
    """
    files = {str(path): _hash_of(path) for path in sources_of(program)}
    packages = sorted({f"{each.name} {each.version}" for each in distributions()})
    variables = {
        name: value
        for name, value in environment.items()
        if name not in _OF_TERMINAL and not name.startswith(_PREFIXES_OF_TERMINAL)
    }
    parts = [
        [program.name, program.arguments, program.is_module],
        files,
        [platform.python_version(), __version__, packages],
        [str(Path.cwd()), variables],
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def sources_of(program: Program) -> list[Path]:
    """Return the files of a program: its script, what that imports, and what arguments name."""
    named = [Path(word.rpartition("=")[2]) for word in program.arguments]
    if program.is_module:
        named += _files_of_module(Path.cwd(), program.name)
    else:
        named.append(Path(program.name))
        named.append(Path(program.name) / "__main__.py")
    found: dict[Path, None] = {}
    todo = [path.absolute() for path in named if _is_small_file(path)]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found[path] = None
        if path.suffix == ".py":
            todo += _imports_of(path)
    return sorted(found)


def _imports_of(path: Path) -> Iterator[Path]:
    """Yield the files of modules that a file imports from its folder or the current one."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, folders = [alias.name for alias in node.names], [path.parent, Path.cwd()]
        elif isinstance(node, ast.ImportFrom):
            stem = [node.module] if node.module else []
            names = [".".join([*stem, alias.name]) for alias in node.names]
            folders = (
                [path.absolute().parents[min(node.level, len(path.absolute().parents)) - 1]]
                if node.level
                else [path.parent, Path.cwd()]
            )
        else:
            continue
        for folder in folders:
            for name in names:
                yield from _files_of_module(folder, name)


def _files_of_module(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files of a module and of the packages around it."""
    place = folder
    for part in name.split("."):
        place = place / part
        for path in (place.with_name(f"{part}.py"), place / "__init__.py", place / "__main__.py"):
            if _is_small_file(path):
                yield path.absolute()


def _is_small_file(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= _MOST_BYTES
    except (OSError, ValueError):  # a word that cannot be the name of a file
        return False


def _hash_of(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
