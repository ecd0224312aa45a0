"""The manifest of a checkpoint: what the checkpoint is, and the hashes of its files."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointDamagedError, CheckpointError
from ..processes.checked_json import BadMessageError, read_json, write_json
from ..regular_file import UnfitFileError, read_regular

FORMAT = 1
MANIFEST_NAME = "manifest.json"

_HASH = re.compile(r"[0-9a-f]{64}")
# A file of a checkpoint lies in its folder: no separators, no "..", no hidden names.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\- ]*")
_LARGEST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class FileFact:
    """The content of one file.

    Attributes:
        bytes: the size of the file.
        hash: the `ContentHash` of the file.
    """

    bytes: int
    hash: str

    def __post_init__(self) -> None:
        if self.bytes < 0 or not _HASH.fullmatch(self.hash):
            raise ValueError(f"a file of {self.bytes} bytes with the hash {self.hash!r}")


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is, and its files.

    Attributes:
        number: the number of the save in its series, from 1.
        step: the step of the training run, if the save was given one.
        metric: the metric of the checkpoint, if the save was given one.
        best: whether the best metric is the ``"max"`` or the ``"min"``; None without a metric.
        layout: how the model was spread when it was saved, in words.
        ranks: how many ranks saved it.
        saved_at: when the checkpoint was saved, in seconds since 1970, by the clock of the node.
        versions: the versions of anyrig, PyTorch and Python.
        files: every file except the manifest, by name.
        format: the version of the folder's format; a reader refuses a later version.
    """

    number: int
    step: int | None
    metric: float | None
    best: str | None
    layout: str
    ranks: int
    saved_at: float
    versions: dict[str, str]
    files: dict[str, FileFact]
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.number < 1 or self.ranks < 1:
            raise ValueError(f"number is {self.number} and ranks is {self.ranks}; both begin at 1")
        if self.best not in (None, "max", "min"):
            raise ValueError(f"best must be 'max' or 'min', not {self.best!r}")
        for name in self.files:
            if not _FILE_NAME.fullmatch(name) or name == MANIFEST_NAME:
                raise ValueError(f"{name!r} is not the name of a checkpoint's file")

    @property
    def bytes(self) -> int:
        """The size of all files except the manifest."""
        return sum(fact.bytes for fact in self.files.values())


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of ``manifest.json``. It ends with a hash of its other fields."""
    content = asdict(manifest) | {"hash": _hash_of(manifest)}
    return json.dumps(content, indent=1).encode()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint's folder.

    Raises:
        CheckpointDamagedError: there is no manifest, or it was altered.
        CheckpointError: the manifest cannot be read, or a later version of anyrig has written it.
    """
    path = folder / MANIFEST_NAME
    try:
        data = read_regular(path, _LARGEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointDamagedError(
            f"{folder} has no {MANIFEST_NAME}, which a save writes last: it is not a checkpoint, "
            "or its save did not finish. Name another checkpoint, or the folder of the series",
            path,
        ) from None
    except UnfitFileError as error:
        raise CheckpointDamagedError(
            f"{path} cannot be used: {error.strerror}. Load another checkpoint of the series", path
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return _decode(data, folder)
    except (BadMessageError, ValueError) as error:
        raise CheckpointDamagedError(
            f"{path} was altered or cut off: {error}. Load another checkpoint of the series", path
        ) from None


def _decode(data: bytes, folder: Path) -> Manifest:
    try:
        content: Any = json.loads(data)
    except RecursionError:
        raise ValueError("it is not JSON (RecursionError)") from None
    if not isinstance(content, dict):
        raise ValueError(f"it is a JSON {type(content).__name__}, not an object")
    format_, expected = content.get("format"), content.pop("hash", None)
    if type(format_) is int and format_ > FORMAT:
        versions = content.get("versions")
        by = versions.get("anyrig") if isinstance(versions, dict) else None
        raise CheckpointError(
            f"{folder} has format {format_}, written by anyrig {by or '?'}; this anyrig reads "
            f"format {FORMAT}. Update anyrig"
        )
    manifest = read_json(Manifest, json.dumps(content))
    if _hash_of(manifest) != expected:
        raise ValueError("its content does not match its hash")
    return manifest


def _hash_of(manifest: Manifest) -> str:
    return hashlib.sha256(write_json(manifest).encode()).hexdigest()
