"""The scratch folder of a shape-only rehearsal: where the script's version of a file is kept.

A shape-only rehearsal computes no values, so what its script saves is not what the file should
hold. Files that were on disk before the rehearsal therefore stay as they are, and the script works
on a copy. All processes of the rehearsal share the folder, and each finds what another wrote::

    /tmp/anyrig-scratch-1000-5f0c…/       made for the first such file, and kept after the rehearsal
        files/data/run/model.pt           stands for /data/run/model.pt
        removed/data/run/old.pt.removed   the script has removed /data/run/old.pt
        removed/data/run.reported         standard error has named the folder /data/run

`redirected_files` sends the functions of Python's library here, and `tensor_files` the functions
that save tensors.
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

_MOST_LINKS = 40  # Linux follows as many


class Scratch:
    """Finds the script's version of a file.

    Args:
        folder: where the versions are kept; made when it is needed.
        started: when the rehearsal started, in seconds since 1970. A file that was modified later
            is the rehearsal's own.
    """

    def __init__(self, folder: str, started: float) -> None:
        self._folder = folder
        self._started = started
        self._thread = threading.local()
        self._made: set[str] = set()  # files that this process opened where there was none
        # Device and number of new files whose times this process has set.
        self._new: set[tuple[int, int]] = set()

    @classmethod
    def beside(cls, cards: str, started: float) -> Scratch:
        """Return the scratch of the rehearsal whose processes share `cards` (`card_folder`)."""
        place, name = os.path.split(cards)
        name = name.removeprefix("anyrig-rehearsal-")
        return cls(os.path.join(os.path.realpath(place), f"anyrig-scratch-{name}"), started)

    @property
    def is_bypassed(self) -> bool:
        """Whether this thread is within `directly`."""
        return getattr(self._thread, "depth", 0) > 0

    @contextmanager
    def directly(self) -> Iterator[None]:
        """Let the redirected functions reach the files themselves in this thread."""
        self._thread.depth = getattr(self._thread, "depth", 0) + 1
        try:
            yield
        finally:
            self._thread.depth -= 1

    def at(self, path: str) -> str:
        """Return where the script finds `path`: in the scratch folder, or `path` as given."""
        with self.directly():
            if self.has(path) or not os.path.isdir(self._folder):
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

    def link_at(self, path: str) -> str:
        """Return where the script finds `path` itself, which may be a symbolic link."""
        with self.directly():
            if self.has(path) or not os.path.isdir(self._folder):
                return path
            place = _without_links(path)
            version = self.version_of(place)
            is_file = os.path.islink(version) or os.path.isfile(version)
            return version if is_file or self.is_removed(place) else path

    def was_there(self, path: str) -> bool:
        """Return whether `path` is a link or a file that is not empty from before the rehearsal."""
        with self.directly(), suppress(OSError):
            found = os.lstat(path)
            if (found.st_dev, found.st_ino) in self._new and found.st_ctime >= self._started:
                return False
            if stat.S_ISLNK(found.st_mode):
                return found.st_mtime < self._started
            # The earlier time: `chmod` and a new hard link change the ctime of an old file, and a
            # file that is unpacked or copied may have an mtime of long ago.
            modified = min(found.st_mtime, found.st_ctime)
            return stat.S_ISREG(found.st_mode) and found.st_size > 0 and modified < self._started
        return False

    def note_new(self, path: str) -> None:
        """Remember that `path` is the rehearsal's own, whatever times the script has set."""
        with self.directly(), suppress(OSError):
            found = os.lstat(path)
            self._new.add((found.st_dev, found.st_ino))

    def for_writing(self, path: str, *, keep: bool) -> str:
        """Return what to open to write `path`: the script's version, if there is or must be one.

        Args:
            path: what the script opens.
            keep: the content stays, as in the modes ``a`` and ``r+``.
        """
        with self.directly():
            version = self.at(path)
            place = os.path.realpath(path)
            if version != path:
                self._make_folder_of(version)
            elif not self.has(path) and self.was_there(place) and os.access(place, os.W_OK):
                version = self.new_version(place)
                if keep:
                    shutil.copyfile(place, version)
            elif not os.path.exists(place):
                self._made.add(place)
            return version

    def for_tensors(self, path: str) -> str:
        """Return what to open to write tensors to `path`: a version, even of a new file."""
        with self.directly():
            version = self.at(path)
            place = os.path.realpath(path)
            there = os.path.exists(place)
            if version != path:
                self._make_folder_of(version)
            elif (
                not self.has(path)
                and (os.path.isfile(place) or not there)
                # Else the system refuses the file, as it would without a rehearsal.
                and os.access(place if there else os.path.dirname(place), os.W_OK)
            ):
                version = self.new_version(place)
            return version

    def take_over(self, file: Any) -> None:
        """Send what is written to the open `file` to the scratch folder from here on."""
        path = getattr(file, "name", None)
        if not isinstance(path, str) or self.has(path) or not hasattr(file, "fileno"):
            return
        with self.directly():
            try:
                number = file.fileno()
                is_it = os.path.isfile(path) and os.path.samestat(os.fstat(number), os.stat(path))
            except (OSError, ValueError):
                return  # has no descriptor, or no name any more
            if not is_it:
                return
            place = os.path.realpath(path)
            file.flush()
            version = self.new_version(place)
            shutil.copyfile(place, version)
            _point_elsewhere(number, version)
            os.truncate(place, 0)
            if place in self._made:  # else it was there, or `tempfile` made it and removes it
                os.unlink(place)
                self._made.remove(place)

    def remove(self, path: str) -> None:
        """Remove `path` as far as the script sees; a file that was there stays."""
        with self.directly():
            place = _without_links(path)
            version = self.link_at(place)
            if version != place:
                os.unlink(version)  # raises if the script has removed it
            if self.was_there(place):
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
        """Show the script `path` again."""
        with self.directly():
            os.unlink(self._note(_without_links(path), "removed"))

    def is_removed(self, path: str) -> bool:
        """Return whether the script has removed the file or folder `path`."""
        with self.directly():
            return os.path.exists(self._note(_without_links(path), "removed"))

    def has(self, path: str) -> bool:
        """Return whether `path` lies in the scratch folder."""
        return os.path.abspath(path).startswith(self._folder + os.sep)

    def version_of(self, path: str) -> str:
        """Return the path of the script's version of `path`, which need not exist."""
        with self.directly():
            return f"{self._folder}{os.sep}files{_without_links(path)}"

    def new_version(self, path: str) -> str:
        """Return `version_of` a file that now gets one; its folder exists."""
        with self.directly():
            version = self.version_of(path)
            self._make_folder_of(version)
            self._report(path)
            return version

    def differences(self, folder: str) -> tuple[set[str], set[str]]:
        """Return the names in `folder` that the script has removed, and those of its versions."""
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

    def forget(self, folder: str) -> None:
        """Remove the versions of what lies below `folder`."""
        with self.directly():
            shutil.rmtree(self.version_of(folder), ignore_errors=True)

    def _note(self, place: str, word: str) -> str:
        return f"{self._folder}{os.sep}removed{place}.{word}"

    def _make_folder_of(self, path: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        found = os.lstat(self._folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise VirtualRigError(
                f"the scratch folder {self._folder} belongs to another user; name another place "
                "for temporary files with TMPDIR"
            )
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)

    def _report(self, path: str) -> None:
        """Say where the script's files of this folder are, once in a rehearsal."""
        note = self._note(os.path.dirname(_without_links(path)), "reported")
        self._make_folder_of(note)
        spared = f"leaves {path} as it is" if os.path.lexists(path) else f"does not make {path}"
        with suppress(FileExistsError):
            os.close(os.open(note, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            sys.stderr.write(
                f"anyrig: a shape-only rehearsal {spared}, because it has no values to "
                "save; what the script writes to the files of that folder is in "
                f"{os.path.dirname(self.version_of(path))}\n"
            )
            sys.stderr.flush()


def _without_links(path: str) -> str:
    """Return the absolute path of `path` itself, which may be a link, in its true folder."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _point_elsewhere(number: int, path: str) -> None:
    """Let the descriptor `number` write to the file `path`, at the same position."""
    import fcntl

    flags = fcntl.fcntl(number, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
    other = os.open(path, flags)
    try:
        os.lseek(other, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(other, number, inheritable=os.get_inheritable(number))
    finally:
        os.close(other)
