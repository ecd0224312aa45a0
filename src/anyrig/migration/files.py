"""Which files to check: those that are named, and the Python files of folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from ..errors import SourceError

_SKIPPED = frozenset(
    {
        *("__pycache__", "__pypackages__", "build", "dist", "node_modules", "site-packages"),
        *("venv", "env", "_build"),
    }
)


def find_files(paths: Iterable[Path], exclude: Sequence[str] = ()) -> Iterator[Path]:
    """Yield named files, and the ``*.py`` files below named folders in the order of their names.

    Hidden folders, virtual environments and build outputs are skipped, and so are folders that a
    link leads to. What is not a regular file is yielded too: reading it says so.

    Args:
        paths: files and folders.
        exclude: patterns that a file's or folder's name, or its path, must not match.

    Raises:
        SourceError: a path does not exist.
    """
    for path in paths:
        if path.is_dir():
            yield from _below(path, exclude)
        elif path.exists():
            if not _is_excluded(path, exclude):
                yield path
        else:
            raise SourceError(f"{str(path)!r} is neither a file nor a folder; name one that exists")


def _below(folder: Path, exclude: Sequence[str]) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and not (here / name / "pyvenv.cfg").exists()
            and not _is_excluded(here / name, exclude)
        )
        for name in sorted(names):
            path = here / name
            if name.endswith(".py") and not _is_excluded(path, exclude):
                yield path


def _is_excluded(path: Path, exclude: Sequence[str]) -> bool:
    text = path.as_posix()
    return any(
        fnmatch(path.name, pattern)
        or fnmatch(text, pattern)
        or fnmatch(text, f"*/{pattern.rstrip('/')}")
        for pattern in exclude
    )
