"""Write one file so that afterwards either the whole new file is there or nothing has changed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import CheckpointError
from .disk import Disk


@contextmanager
def open_atomically(path: Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name when the block ends without an error.

    Args:
        path: the file's name.
        overwrite: replace an existing file once the new file is complete.

    Raises:
        CheckpointError: the file exists already and `overwrite` is False, or it cannot be written.
    """
    temporary: Path | None = None
    try:
        if not overwrite and path.exists():
            raise _exists(path)
        if path.is_dir() or not path.name:
            raise CheckpointError(f"{path} is a folder; name a file")
        if not path.parent.is_dir():
            raise CheckpointError(f"{path.parent} is not a folder; create it first")
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            _name_once(temporary, path)
        Disk().sync_folder(path.parent)
    except (OSError, ValueError) as error:  # no system has a file with a null byte in its name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CheckpointError(
            f"{str(path)!r} cannot be written: {reason}. An existing file is unchanged"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _name_once(temporary: Path, path: Path) -> None:
    """Give the file its name unless another process took the name meanwhile."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:  # the file system has no links
        if path.exists():
            raise _exists(path) from None
        temporary.rename(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _exists(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} exists already, and was not changed. Choose another name, or overwrite it "
        "(--force on the command line)"
    )
