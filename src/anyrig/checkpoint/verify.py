"""Compare the files of a checkpoint with its manifest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointDamagedError, CheckpointError
from ..regular_file import UnfitFileError, open_regular
from .digest import hash_file
from .folder_name import folder_name, number_in
from .manifest import FileFact, Manifest, read_manifest


@dataclass(frozen=True)
class Finding:
    """What is wrong with one file of a checkpoint.

    Attributes:
        path: the file.
        problem: the problem in words, such as ``"is missing"``.
    """

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


def finding_of(path: Path, error: CheckpointError) -> Finding:
    """Return the finding that an error describes, without repeating the path."""
    text, damaged = str(error), getattr(error, "path", None)
    for named in (path, *(() if damaged is None else (damaged, damaged.parent))):
        if text.startswith(f"{named} "):
            return Finding(named, text.removeprefix(f"{named} "))
    return Finding(path, f"cannot be used: {text}")


def verify_folder(folder: Path, *, hashes: bool = True) -> tuple[Finding, ...]:
    """Return what is wrong with a checkpoint's folder; nothing if it is whole.

    Args:
        folder: the folder of one checkpoint.
        hashes: whether to read all files and compare their hashes, or only their sizes.

    Raises:
        CheckpointError: the manifest cannot be read, or a later version of anyrig has written it.
    """
    try:
        manifest = read_manifest(folder)
    except CheckpointDamagedError as error:
        return (finding_of(folder, error),)
    renamed = find_rename(folder, manifest)
    return (*verify_files(folder, manifest, hashes=hashes), *((renamed,) if renamed else ()))


def verify_files(folder: Path, manifest: Manifest, *, hashes: bool = True) -> tuple[Finding, ...]:
    """Return what is wrong with the files that a manifest lists."""
    problems = (
        (folder / name, _problem_of(folder / name, fact, hashes))
        for name, fact in manifest.files.items()
    )
    return tuple(Finding(path, problem) for path, problem in problems if problem is not None)


def find_rename(folder: Path, manifest: Manifest) -> Finding | None:
    """Return what is wrong if a folder has the name of another save of its series."""
    number = number_in(folder.name)
    if number in (0, manifest.number):
        return None
    name = folder_name(manifest.number, manifest.step)
    return Finding(folder, f"was renamed: it is save {manifest.number}. Rename it to {name}")


def require_sizes(folder: Path, files: Mapping[str, FileFact], writer: str) -> None:
    """Raise if this process does not see files as their writer has written them.

    Raises:
        CheckpointError: a file is missing or has another size; the message names the writer.
    """
    for name, fact in files.items():
        problem = _problem_of(folder / name, fact, hashes=False)
        if problem is not None:
            raise CheckpointError(
                f"{folder / name} {problem}: {writer} has written it. Save to a folder that all "
                "nodes share"
            )


def require_whole(
    folder: Path, manifest: Manifest, *, hashes: bool = True, names: Iterable[str] | None = None
) -> None:
    """Raise CheckpointDamagedError if a file differs from the manifest; the message names it.

    Args:
        folder: the folder of one checkpoint.
        manifest: its manifest.
        hashes: whether to read the files and compare their hashes, or only their sizes.
        names: the files to look at; None for all.
    """
    for name in manifest.files if names is None else names:
        fact = manifest.files[name]
        problem = _problem_of(folder / name, fact, hashes)
        if problem is not None:
            raise CheckpointDamagedError(
                f"{folder / name} {problem}. Load another checkpoint of the series", folder / name
            )


def _problem_of(path: Path, fact: FileFact, hashes: bool) -> str | None:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != fact.bytes:
                return f"has {size} bytes, and {fact.bytes} were saved"
        if hashes and hash_file(path) != fact.hash:
            return "was altered: its content does not match the saved hash"
    except FileNotFoundError:
        return "is missing"
    except UnfitFileError as error:
        return f"cannot be used: {error.strerror}"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None
