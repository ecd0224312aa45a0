"""Commit a checkpoint: either the whole new checkpoint is in the series, or nothing has changed.

::

    mkdir  .tmp-000007-…            a reader ignores this name
    write  model.safetensors …      each file: create, write, fsync
    read   model.safetensors …      what was written can be loaded
    write  manifest.json            the last file, with sizes and hashes of the others; fsync
    fsync  .tmp-000007-…            the names of the files are on the disk
    rename .tmp-000007-… → 000007-step-1200
    fsync  the series               only now is the save reported

Then surplus checkpoints are removed: they are renamed to temporary names, the series is synced, and
their files are deleted. At worst, a crash or an interrupt leaves a temporary folder, which a later
save removes.
"""

from __future__ import annotations

import errno
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError
from .digest import PIECE_BYTES, ContentHash
from .disk import Disk
from .folder_name import folder_name
from .manifest import MANIFEST_NAME, FileFact, Manifest, encode_manifest
from .series import TEMPORARY_PREFIX, Checkpoint, Series
from .writer_mark import SURPLUS, is_abandoned, own_mark

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The content of a file, in parts of any sizes.
Parts = Iterable["Buffer"]

# Raises if the files in a folder, which has no manifest yet, cannot be loaded.
Check = Callable[[Path, Mapping[str, FileFact]], object]

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def commit(
    series: Series,
    contents: Mapping[str, Parts],
    describe: Callable[[int, dict[str, FileFact]], Manifest],
    *,
    check: Check | None = None,
    keep: int | None = None,
    disk: Disk | None = None,
) -> Checkpoint:
    """Write the files of a checkpoint, and add the checkpoint to its series.

    Args:
        series: gets the checkpoint; its folder is created if necessary.
        contents: the content of each file, by name.
        describe: returns the manifest for the checkpoint's number and its files.
        check: raises if the files in the given folder cannot be loaded; None checks nothing.
        keep: how many checkpoints to keep, in addition to the best one; None for all.
        disk: performs the file operations.

    Raises:
        CheckpointError: a file cannot be written, and the message names the file; or `check` has
            raised. The series is unchanged.
    """
    disk = disk or Disk()
    folder = begin(series, disk)
    with removed_after_failure(folder, disk):
        make_temporary(folder, disk)
        files = write_files(folder, contents, disk)
        checkpoint = publish(series, folder, describe, files, check, disk)
    remove_surplus(series, keep, disk)
    return checkpoint


def begin_series(series: Series, disk: Disk) -> None:
    """Create the folder of a series, and the folders above, if they do not exist."""
    with explaining(series.folder, "created"):
        is_checkpoint = (series.folder / MANIFEST_NAME).exists()
    if is_checkpoint:
        raise CheckpointError(
            f"{series.folder} is one checkpoint; save to the folder of its series, "
            f"{series.folder.parent}"
        )
    missing = []
    folder = series.folder
    with explaining(series.folder, "created"):
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for folder in reversed(missing):
            with suppress(FileExistsError):  # another process has created the folder meanwhile
                disk.make_folder(folder)
            disk.sync_folder(folder.parent)
        if not series.folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")


def begin(series: Series, disk: Disk) -> Path:
    """Create the series if it is missing, and name a temporary folder, which readers ignore."""
    begin_series(series, disk)
    remove_abandoned(series, disk)
    name = f"{TEMPORARY_PREFIX}{series.next_number():06d}-{own_mark()}-{secrets.token_hex(4)}"
    return series.folder / name


def make_temporary(folder: Path, disk: Disk) -> None:
    """Make the folder that `begin` has named.

    Raises:
        CheckpointError: the folder cannot be created.
    """
    with explaining(folder, "created"):
        disk.make_folder(folder)


@contextmanager
def removed_after_failure(folder: Path, disk: Disk) -> Iterator[None]:
    """Remove a temporary folder, if it exists, if the block raises.

    The folder is made in the block, so that no interrupt comes between its making and the block.
    """
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _remove_files(folder, disk)
        raise


def write_files(folder: Path, contents: Mapping[str, Parts], disk: Disk) -> dict[str, FileFact]:
    """Write files into a temporary folder, and return when their contents are on the disk."""
    return {name: write_file(folder / name, parts, disk) for name, parts in contents.items()}


def write_file(path: Path, parts: Parts, disk: Disk) -> FileFact:
    """Write a new file and return when its content is on the disk.

    Raises:
        CheckpointError: the file cannot be written.
    """
    bytes_ = 0
    with explaining(path, "written"), disk.create(path) as file, ContentHash() as content:
        for part in parts:
            view = memoryview(part).cast("B")
            bytes_ += len(view)
            for start in range(0, len(view), PIECE_BYTES):  # one is hashed while another is written
                piece = view[start : start + PIECE_BYTES]
                content.update(piece)
                disk.write(file, piece)
        disk.sync(file)
        return FileFact(bytes_, content.hexdigest())


def publish(
    series: Series,
    folder: Path,
    describe: Callable[[int, dict[str, FileFact]], Manifest],
    files: dict[str, FileFact],
    check: Check | None,
    disk: Disk,
) -> Checkpoint:
    """Write the manifest into a temporary folder, and rename the folder to a checkpoint's name.

    The folder is only renamed if `check` does not raise, so that no checkpoint is removed as
    surplus in favour of one that cannot be loaded.
    """
    number = int(folder.name.removeprefix(TEMPORARY_PREFIX).split("-")[0])
    if check is not None:
        check(folder, files)
    manifest = describe(number, files)
    write_file(folder / MANIFEST_NAME, [encode_manifest(manifest)], disk)
    path = series.folder / folder_name(number, manifest.step)
    with explaining(path, "created"):
        disk.sync_folder(folder)
        try:
            disk.rename(folder, path)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            raise CheckpointError(
                f"another process has saved {path} meanwhile. Give each training run its own "
                "series; start the ranks of one run with anyrig run or anyrig.launch"
            ) from error
        disk.sync_folder(series.folder)
    return Checkpoint(path, manifest)


def remove_surplus(series: Series, keep: int | None, disk: Disk) -> None:
    """Remove all checkpoints except the newest `keep` and the best one; None keeps all.

    A checkpoint that is a link to a folder elsewhere, such as an archive, stays.

    The new checkpoint is already saved, so a failure is only a warning.
    """
    if keep is None:
        return
    path, doomed = series.folder, []
    try:
        for path in series.surplus(keep):
            number = path.name.split("-")[0]
            name = f"{TEMPORARY_PREFIX}{number}{SURPLUS}{secrets.token_hex(4)}"
            try:
                disk.rename(path, path.with_name(name))
            except FileNotFoundError:  # another process has removed it meanwhile
                continue
            doomed.append(path.with_name(name))
        if doomed:
            # Otherwise a file system may remove files first and rename their folder later.
            disk.sync_folder(series.folder)
        for path in doomed:
            _remove_files(path, disk)
    except OSError as error:
        warnings.warn(
            f"the new checkpoint is saved, but {path} is surplus and cannot be removed: "
            f"{error.strerror or error}",
            RuntimeWarning,
            stacklevel=2,
        )


def remove_abandoned(series: Series, disk: Disk) -> None:
    """Remove temporary folders that no save needs any more, where this is permitted.

    Other things with such a name stay: no save has made them.
    """
    doomed = []
    with suppress(OSError):
        for folder in series.folder.glob(f"{TEMPORARY_PREFIX}*"):
            with suppress(OSError):
                if is_abandoned(folder):
                    doomed.append(folder)
        if doomed:
            disk.sync_folder(series.folder)  # as in `remove_surplus`
        for folder in doomed:
            with suppress(OSError):
                _remove_files(folder, disk)


def _remove_files(folder: Path, disk: Disk) -> None:
    """Remove a folder of files; a link to a folder is an error, and nothing is removed.

    Another process may remove the same folder.
    """
    with suppress(FileNotFoundError):
        for name in disk.names_in(folder):
            with suppress(FileNotFoundError):
                disk.unlink(folder / name)
        disk.remove_folder(folder)


@contextmanager
def explaining(path: Path, verb: str) -> Iterator[None]:
    """Turn an OSError into a CheckpointError that names the path."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        raise CheckpointError(
            f"{path} cannot be {verb}: {error.strerror or error}. {remedy}"
            "Earlier checkpoints are unchanged"
        ) from error


_FULL_QUOTA = getattr(errno, "EDQUOT", -1)  # not on Windows
_REMEDIES = {
    errno.ENOSPC: "Free space on this disk, or keep fewer checkpoints with save(…, keep=). ",
    _FULL_QUOTA: "Free space within your quota, or keep fewer checkpoints with save(…, keep=). ",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f). ",
    errno.EACCES: "Make the folder writable for this user, or save elsewhere. ",
    errno.ENAMETOOLONG: "Shorten the path. ",
    errno.EROFS: "Save to a file system that is not read-only. ",
    errno.ENOENT: "Its folder was removed during the save; remove no files of a running save. ",
}
