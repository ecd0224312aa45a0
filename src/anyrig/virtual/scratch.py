"""The scratch folder of a shape-only rehearsal, which holds the script's versions of files.

A shape-only rehearsal computes no values, so its script must not overwrite real files. Files from
before the rehearsal stay unchanged, and the script works on copies, called *versions*. All
processes of the rehearsal share the folder, so each finds what another wrote::

    /tmp/anyrig-scratch-1000-5f0c…/       created for the first version, kept after the rehearsal
        files/data/run/model.pt           the version of /data/run/model.pt
        removed/data/run/old.pt.removed   marks that the script has removed /data/run/old.pt
        removed/data/run.reported         marks that standard error has named the folder /data/run

`redirected_files` redirects the functions of Python's library to this folder, and `tensor_files`
the functions that save tensors.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import VirtualRigError

_MOST_LINKS = 40  # Linux follows at most 40 symbolic links, too


class Scratch:
    """The scratch folder: finds, creates and removes the script's versions of files.

    Args:
        folder: the path of the scratch folder, which is created when it is first needed.
        started: when the rehearsal started, in seconds since 1970. A file modified later belongs to
            the rehearsal.
    """

    def __init__(self, folder: str, started: float) -> None:
        self._folder = folder
        self._started = started
        self._thread = threading.local()
        self._made: set[str] = set()  # files that this process created by opening them
        # (device, inode) of files of the rehearsal whose times this process has set.
        self._new: set[tuple[int, int]] = set()

    @classmethod
    def for_rehearsal(cls, gpus: str, started: float) -> Scratch:
        """Return the scratch folder of the rehearsal whose shared folder is `gpus`."""
        place, name = os.path.split(gpus)
        name = name.removeprefix("anyrig-rehearsal-")
        return cls(os.path.join(os.path.realpath(place), f"anyrig-scratch-{name}"), started)

    @property
    def is_bypassed(self) -> bool:
        """Whether this thread is inside a `directly` block."""
        return getattr(self._thread, "depth", 0) > 0

    @contextmanager
    def directly(self) -> Iterator[None]:
        """Within the block, let this thread's file functions bypass the redirection."""
        self._thread.depth = getattr(self._thread, "depth", 0) + 1
        try:
            yield
        finally:
            self._thread.depth -= 1

    def find(self, path: str) -> str:
        """Return the file that the script sees at `path`: its version, or `path` itself.

        Symbolic links are followed.
        """
        with self.directly():
            if self.contains(path) or not os.path.isdir(self._folder):
                return path
            place = _without_links(path)
            for _ in range(_MOST_LINKS):
                version = self.version_of(place)
                if os.path.islink(version):
                    target = os.readlink(version)
                elif os.path.isfile(version) or os.path.exists(self._note(place, "removed")):
                    return version
                elif os.path.islink(place):
                    target = os.readlink(place)
                else:
                    break
                place = _without_links(os.path.join(os.path.dirname(place), target))
            return path

    def find_link(self, path: str) -> str:
        """Return the file that the script sees at `path`, without following a symbolic link."""
        with self.directly():
            if self.contains(path) or not os.path.isdir(self._folder):
                return path
            place = _without_links(path)
            version = self.version_of(place)
            is_file = os.path.islink(version) or os.path.isfile(version)
            return version if is_file or self.is_removed(place) else path

    def is_old(self, path: str) -> bool:
        """Return whether `path` is a link or a non-empty file from before the rehearsal."""
        with self.directly(), suppress(OSError):
            found = os.lstat(path)
            if (found.st_dev, found.st_ino) in self._new and found.st_ctime >= self._started:
                return False
            if stat.S_ISLNK(found.st_mode):
                return found.st_mtime < self._started
            # Take the earlier of the two times. `chmod` and a new hard link update the ctime of an
            # old file, and unpacking or copying can give a new file an old mtime.
            modified = min(found.st_mtime, found.st_ctime)
            return stat.S_ISREG(found.st_mode) and found.st_size > 0 and modified < self._started
        return False

    def mark_new(self, path: str) -> None:
        """Record that `path` belongs to the rehearsal, whatever times the script has set."""
        with self.directly(), suppress(OSError):
            found = os.lstat(path)
            self._new.add((found.st_dev, found.st_ino))

    def for_writing(self, path: str, *, keep: bool) -> str:
        """Return the file to open for writing `path`: a version if `path` is an old file.

        Args:
            path: the file that the script opens.
            keep: whether the content stays, as in the modes ``a`` and ``r+``.
        """
        with self.directly():
            version = self.find(path)
            place = os.path.realpath(path)
            if version != path:
                self._make_folder_of(version)
            elif not self.contains(path) and self.is_old(place) and os.access(place, os.W_OK):
                version = self.new_version(place)
                if keep:
                    shutil.copyfile(place, version)
            elif not os.path.exists(place):
                self._made.add(place)
            return version

    def for_tensors(self, path: str) -> str:
        """Return the file to open for writing tensors to `path`: a version, even of a new file."""
        with self.directly():
            version = self.find(path)
            place = os.path.realpath(path)
            there = os.path.exists(place)
            if version != path:
                self._make_folder_of(version)
            elif (
                not self.contains(path)
                and (os.path.isfile(place) or not there)
                # If the script may not write here, the system must refuse `path` itself.
                and os.access(place if there else os.path.dirname(place), os.W_OK)
            ):
                version = self.new_version(place)
            return version

    def redirect_open_file(self, file: Any) -> None:
        """Redirect further writes of the open `file` to a version in the scratch folder."""
        path = getattr(file, "name", None)
        if not isinstance(path, str) or self.contains(path) or not hasattr(file, "fileno"):
            return
        with self.directly():
            try:
                number = file.fileno()
                is_same = os.path.isfile(path) and os.path.samestat(os.fstat(number), os.stat(path))
            except (OSError, ValueError):
                return  # no descriptor, or the file has been deleted
            if not is_same:
                return
            place = os.path.realpath(path)
            file.flush()
            version = self.new_version(place)
            shutil.copyfile(place, version)
            _redirect_descriptor(number, version)
            os.truncate(place, 0)
            if place in self._made:  # otherwise the file is old, or `tempfile` will remove it
                os.unlink(place)
                self._made.remove(place)

    def remove(self, path: str) -> None:
        """Remove `path` from the script's view; a file from before the rehearsal stays on disk."""
        with self.directly():
            place = _without_links(path)
            version = self.find_link(place)
            if version != place:
                os.unlink(version)  # raises FileNotFoundError if the script has removed `path`
            if self.is_old(place):
                if version == place:
                    self._report(place)
                self.mark_removed(place)
            elif version == place or os.path.lexists(place):
                os.unlink(place)

    def mark_removed(self, path: str) -> None:
        """Hide the file or folder `path` from the script."""
        with self.directly():
            note = self._note(_without_links(path), "removed")
            self._make_folder_of(note)
            os.close(os.open(note, os.O_CREAT | os.O_WRONLY, 0o600))

    def unmark_removed(self, path: str) -> None:
        """Undo `mark_removed`."""
        with self.directly():
            os.unlink(self._note(_without_links(path), "removed"))

    def is_removed(self, path: str) -> bool:
        """Return whether the script has removed the file or folder `path`."""
        with self.directly():
            return os.path.exists(self._note(_without_links(path), "removed"))

    def contains(self, path: str) -> bool:
        """Return whether `path` lies in the scratch folder."""
        return os.path.abspath(path).startswith(self._folder + os.sep)

    def version_of(self, path: str) -> str:
        """Return the path of the script's version of `path`, which need not exist."""
        with self.directly():
            return f"{self._folder}{os.sep}files{_without_links(path)}"

    def new_version(self, path: str) -> str:
        """Return the path for a new version of `path`, with its folder created.

        Report the scratch folder on standard error, once for each folder of the script's files.
        """
        with self.directly():
            version = self.version_of(path)
            self._make_folder_of(version)
            self._report(path)
            return version

    def differences(self, folder: str) -> tuple[set[str], set[str]]:
        """Return two sets of names in `folder`: those that the script removed, and its versions."""
        with self.directly():
            place = os.path.realpath(folder)
            removed: set[str] = set()
            own: set[str] = set()
            with suppress(OSError):
                notes = os.listdir(f"{self._folder}{os.sep}removed{place}")
                removed = {
                    name.removesuffix(".removed") for name in notes if name.endswith(".removed")
                }
            with suppress(OSError):
                versions = os.scandir(self.version_of(place))
                own = {entry.name for entry in versions if not entry.is_dir(follow_symlinks=False)}
            return removed, own

    def delete_versions(self, folder: str) -> None:
        """Delete all versions of files below `folder`."""
        with self.directly():
            shutil.rmtree(self.version_of(folder), ignore_errors=True)

    def _note(self, place: str, suffix: str) -> str:
        return f"{self._folder}{os.sep}removed{place}.{suffix}"

    def _make_folder_of(self, path: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        found = os.lstat(self._folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise VirtualRigError(
                f"the scratch folder {self._folder} belongs to another user; set TMPDIR to another "
                "folder for temporary files"
            )
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)

    def _report(self, path: str) -> None:
        """Report the folder of the versions of `path` and its siblings, once per rehearsal."""
        note = self._note(os.path.dirname(_without_links(path)), "reported")
        self._make_folder_of(note)
        action = "change" if os.path.lexists(path) else "create"
        with suppress(FileExistsError):
            os.close(os.open(note, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            sys.stderr.write(
                f"anyrig: a shape-only rehearsal does not {action} {path}, because it has no "
                "values to save; files that the script writes to that folder are in "
                f"{os.path.dirname(self.version_of(path))}\n"
            )
            sys.stderr.flush()


def _without_links(path: str) -> str:
    """Return the absolute path of `path`, with links resolved in its folder but not in its name."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _redirect_descriptor(number: int, path: str) -> None:
    """Redirect the descriptor `number` to the file `path`, at the same position."""
    import fcntl

    flags = fcntl.fcntl(number, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
    other = os.open(path, flags)
    try:
        os.lseek(other, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(other, number, inheritable=os.get_inheritable(number))
    finally:
        os.close(other)
