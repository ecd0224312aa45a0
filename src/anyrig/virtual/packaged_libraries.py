"""The compiled libraries of the package `anyrig-virtual`, which is optional.

::

    site-packages/anyrig_virtual/
        2.13.0-cpython-311-x86_64-linux-gnu-0f3c…/      the names of the cache (see build.py)
            anyrig_virtual_extension.so
            anyrig_virtual_extension.so.sha256
        driver-77e0…/
            libnvidia-ml.so.1
            libnvidia-ml.so.1.sha256

A library fits if the folder of its name exists, since the name has PyTorch's release, Python's ABI
and the hash of the sources. Like a library of the cache, it is loaded only if it has the recorded
hash and no other user could have changed it.
"""

from __future__ import annotations

import importlib.util
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from .library_cache import matches_record, record_of

PACKAGE = "anyrig_virtual"
INSTALL = "pip install 'anyrig[virtual]'"


@dataclass(frozen=True)
class PackagedLibrary:
    """What the package `anyrig-virtual` offers: a compiled library, or why it has none that fits.

    Attributes:
        path: the library; None if no library can be loaded.
        reason: why an installed package has no library for this PyTorch; None if it has one, or if
            the package is not installed.
    """

    path: Path | None
    reason: str | None = None


def find_packaged(key: str, name: str) -> PackagedLibrary:
    """Return the library `name` of the folder `key`, if the package has it intact."""
    package = _package_folder()
    if package is None:
        return PackagedLibrary(None)
    library = package / key / name
    if not library.parent.is_dir():
        return PackagedLibrary(None, f"{package} has none that fits: {_describe(package)}")
    try:
        files = [package.parent, package, library.parent, library, record_of(library)]
        for file in files:
            if writers := _other_writers(file):
                return PackagedLibrary(None, f"{writers} could have changed {file}")
        is_intact = matches_record(library)
    except OSError as error:
        return PackagedLibrary(None, f"{library} cannot be read: {error}")
    if not is_intact:
        return PackagedLibrary(None, f"{library} is damaged; install anyrig-virtual again")
    return PackagedLibrary(library)


def _package_folder() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    return None if found is None or found.origin is None else Path(found.origin).resolve().parent


def _describe(package: Path) -> str:
    """Return for which versions of PyTorch and Python `package` was compiled."""
    names = [path.name.split("-") for path in package.glob("*-cpython-*") if path.is_dir()]
    releases = sorted({words[0] for words in names}, key=_as_numbers)
    pythons = sorted({f"{words[2][0]}.{words[2][1:]}" for words in names}, key=_as_numbers)
    return (
        f"it was compiled for PyTorch {', '.join(releases)}, CPython {', '.join(pythons)}, and the "
        "sources of the anyrig of its version"
    )


def _as_numbers(version: str) -> list[int]:
    return [int(word) for word in version.split(".") if word.isdigit()]


def _other_writers(path: Path) -> str | None:
    """Return who else than this user and root can write to `path`, whose code will run."""
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        return f"user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "every user"
    if found.st_mode & stat.S_IWGRP and not _is_group_of_one(found.st_gid, found.st_uid):
        return f"group {found.st_gid}"
    return None


def _is_group_of_one(group: int, user: int) -> bool:
    """Return whether `group` is the private group of `user`.

    Where each user has such a group, files are writable to the group by default (umask 002).
    """
    import grp  # not on Windows
    import pwd

    try:
        owner, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    is_private = (owner.pw_name, owner.pw_gid) == (members.gr_name, group)
    return is_private and set(members.gr_mem) <= {owner.pw_name}
