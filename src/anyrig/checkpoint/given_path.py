"""The paths that a caller gives to `save`, `load` and `resume`."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import CheckpointError


def absolute_path(given: str | os.PathLike[str]) -> Path:
    """Return a given path as an absolute one.

    Raises:
        CheckpointError: it is not a path, has a null byte, or is relative to a working folder that
            was removed.
    """
    try:
        path = Path(given)
    except TypeError:
        raise CheckpointError(
            f"path must be a string or a pathlib.Path; got {given!r:.80}"
        ) from None
    if "\0" in str(path):
        raise CheckpointError(
            f"path is {str(path)!r}, and no file can have a null byte in its name. Remove the byte"
        )
    try:
        return path.absolute()
    except OSError as error:
        raise CheckpointError(
            f"path is {str(path)!r}, and the working folder, to which it is relative, cannot be "
            f"found: {error.strerror or error}. Change to a folder that exists, or give an "
            "absolute path"
        ) from error
