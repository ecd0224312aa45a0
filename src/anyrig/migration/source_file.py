"""A Python file as it lies on the disk: its text with its own newlines, and its encoding."""

from __future__ import annotations

import io
import os
import tempfile
import tokenize
from dataclasses import dataclass
from pathlib import Path

from ..regular_file import read_regular

# Larger files are data. Parsing takes some hundred bytes of memory for each byte.
MOST_SOURCE_BYTES = 10_000_000


@dataclass(frozen=True)
class SourceFile:
    """The text of a file, and how its bytes encode the text.

    Attributes:
        path: the file.
        text: the text; newlines are as in the file.
        encoding: Python's name of the encoding.
        siblings: the modules next to a package's ``__init__.py``; none for any other file.
    """

    path: Path
    text: str
    encoding: str
    siblings: frozenset[str] = frozenset()


def read_source(path: Path) -> SourceFile:
    """Read a file in the encoding that its first lines or its byte-order mark name, else in UTF-8.

    Files of Python 2 may hold other bytes without naming an encoding; they are read as Latin-1,
    which maps every byte to a character and back.

    Raises:
        OSError: the file cannot be read, is not a regular file, or has more than
            `MOST_SOURCE_BYTES` bytes. A link to a regular file is followed.
        SyntaxError: the file names an encoding that Python does not know.
    """
    content = read_regular(path, MOST_SOURCE_BYTES, follow_links=True)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return SourceFile(path, content.decode(encoding), encoding, find_siblings(path))
    except (UnicodeDecodeError, SyntaxError) as error:
        if "unknown encoding" in str(error) or "encoding problem" in str(error):
            raise
        return SourceFile(path, content.decode("latin-1"), "latin-1", find_siblings(path))


def find_siblings(path: Path) -> frozenset[str]:
    """Return the modules next to a package's ``__init__.py``; none for any other file.

    Left out are the names of the packages around the file, and of modules next to the outermost
    package: these may be meant instead.
    """
    if path.name != "__init__.py":
        return frozenset()
    folder = outermost = path.resolve().parent
    names = _modules_in(folder)
    while (outermost / "__init__.py").exists() and outermost != outermost.parent:
        names.discard(outermost.name)
        outermost = outermost.parent
    return frozenset(names - _modules_in(outermost) if outermost != folder else names)


def _modules_in(folder: Path) -> set[str]:
    packages = {each.parent.name for each in folder.glob("*/__init__.py")}
    return packages | {each.stem for each in folder.glob("*.py")}


def write_source(source: SourceFile, text: str) -> None:
    """Replace the file's text at once: a crash leaves the old file or the new one.

    The file keeps its encoding and its mode. A symbolic link keeps pointing to its file.

    Raises:
        OSError: the file cannot be written; it is unchanged.
        UnicodeEncodeError: the encoding has no bytes for a character of the text.
    """
    content = text.encode(source.encoding)
    path = source.path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
