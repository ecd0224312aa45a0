"""Check whether a checkpoint of any tool is whole: hashes, checksums, sizes, and safety."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from .any_model import is_series
from .exactness import check_exact_state
from .foreign.read import read_foreign
from .foreign.state import Format
from .manifest import read_manifest
from .random_state import check_random_state
from .series import Series, is_checkpoint_folder
from .snapshot_files import VALUES_NAME, read_snapshot
from .values_file import decode_text
from .verify import Finding, finding_of, verify_folder

_WITH_CHECKSUMS = {Format.TORCH, Format.LIGHTNING, Format.HUGGING_FACE_TORCH, Format.DISTRIBUTED}


@dataclass(frozen=True)
class Integrity:
    """Whether one checkpoint is whole.

    Attributes:
        path: the checkpoint.
        findings: what is wrong; empty if the checkpoint is whole.
        method: what was compared.
    """

    path: Path
    findings: tuple[Finding, ...]
    method: str


def check_integrity(path: Path) -> tuple[Integrity, ...]:
    """Return whether a checkpoint is whole, or each checkpoint of a series, oldest first.

    Raises:
        FileNotFoundError: nothing is there.
    """
    if is_series(path):
        return tuple(_check_own(folder) for folder in reversed(Series(path).folders()))
    if path.is_dir() and is_checkpoint_folder(path):
        return (_check_own(path),)
    try:
        found = read_foreign(path).recognition.format
    except CheckpointError as error:
        return (Integrity(path, (finding_of(path, error),), "reading it"),)
    method = "checksums" if found in _WITH_CHECKSUMS else "sizes; the format has no checksums"
    return (Integrity(path, (), f"{found.value}: {method}"),)


def _check_own(folder: Path) -> Integrity:
    """Compare the hashes, then read the files, since a forged file can come with its own hash."""
    method = "hashes of all files"
    try:
        findings = verify_folder(folder)
        if not findings:
            findings = _read_all(folder)
    except CheckpointError as error:
        return Integrity(folder, (finding_of(folder, error),), method)
    return Integrity(folder, findings, method)


def _read_all(folder: Path) -> tuple[Finding, ...]:
    """Read what `anyrig.load` would read, and return what the manifest says differently.

    Raises:
        CheckpointError: something cannot be read.
    """
    manifest, snapshot = read_manifest(folder), read_snapshot(folder)
    path = folder / VALUES_NAME
    for each in snapshot.random:
        check_random_state(decode_text(each["state"], path))
    check_exact_state(snapshot, folder)
    facts = (
        ("step", snapshot.given.get("step"), manifest.step),
        ("number of ranks", len(snapshot.random), manifest.ranks),
    )
    return tuple(
        Finding(path, f"has the {what} {found}, and the manifest {expected}")
        for what, found, expected in facts
        if found != expected
    )
