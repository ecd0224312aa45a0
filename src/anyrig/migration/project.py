"""Check and rewrite many files, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .check import Rewriting, check_source, rewrite_source
from .finding import Finding
from .rule import Rule
from .source_file import SourceFile, read_source, write_source


@dataclass(frozen=True)
class FileReport:
    """What was found in a file, and the result of rewriting it.

    Attributes:
        path: the file.
        findings: what the rules find, after the rewriting if there was one.
        rewriting: the rewriting, if one was asked for.
        trouble: why the file could not be read, rewritten or written; None if all went well.
        is_read: whether the file was read and checked.
    """

    path: Path
    findings: tuple[Finding, ...] = ()
    rewriting: Rewriting | None = None
    trouble: str | None = None
    is_read: bool = True


def check_files(paths: Iterable[Path], rules: Sequence[Rule]) -> Iterator[FileReport]:
    """Check each file."""
    for path in paths:
        source = _read(path)
        yield source if isinstance(source, FileReport) else _checked(source, rules)


def rewrite_files(
    paths: Iterable[Path],
    rules: Sequence[Rule],
    *,
    allow_unsafe: bool,
    write: bool,
    within: Sequence[Path] | None = None,
) -> Iterator[FileReport]:
    """Rewrite each file, and check what is left.

    Args:
        paths: the files.
        rules: the rules whose fixes are applied.
        allow_unsafe: apply also fixes that may change what a program computes.
        write: write the files; otherwise the reports only hold the new texts.
        within: the files and folders that may be changed. A link to any other file is reported, and
            the file stays as it is. None: all files may be changed.
    """
    for path in paths:
        source = _read(path)
        if isinstance(source, FileReport):
            yield source
            continue
        outside = None if within is None else _outside(path, within)
        if outside is not None:
            reason = f"is a link to {outside}, and is unchanged; name that file to rewrite it"
            yield FileReport(path, trouble=reason, is_read=False)
            continue
        try:
            rewriting = rewrite_source(source, rules, allow_unsafe=allow_unsafe)
        except SyntaxError as error:
            yield _unparsed(path, error)
            continue
        trouble = None if rewriting.problem is None else f"left as it was: {rewriting.problem}"
        if write and rewriting.is_changed:
            try:
                write_source(source, rewriting.text)
            except (OSError, UnicodeEncodeError) as error:
                yield FileReport(path, trouble=f"cannot be written, and is unchanged: {error}")
                continue
        after = replace(source, text=rewriting.text)
        yield FileReport(path, _checked(after, rules).findings, rewriting, trouble)


def _outside(path: Path, within: Sequence[Path]) -> Path | None:
    """Return the target of a link that leads out of `within`; None for any other path."""
    if not path.is_symlink():
        return None
    try:
        target = path.resolve()
        is_inside = any(target.is_relative_to(each.resolve()) for each in within)
    except (OSError, RuntimeError):  # links in a circle, which reading reports
        return None
    return None if is_inside else target


def _read(path: Path) -> SourceFile | FileReport:
    try:
        return read_source(path)
    except (OSError, SyntaxError) as error:
        return FileReport(path, trouble=f"cannot be read: {error}", is_read=False)


def _checked(source: SourceFile, rules: Sequence[Rule]) -> FileReport:
    try:
        return FileReport(source.path, check_source(source, rules))
    except SyntaxError as error:
        return _unparsed(source.path, error)


def _unparsed(path: Path, error: SyntaxError) -> FileReport:
    reason = f"parses neither as Python 3 nor as Python 2: line {error.lineno}: {error.msg}"
    return FileReport(path, trouble=reason, is_read=False)
