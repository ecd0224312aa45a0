"""Libraries that are compiled once and kept: built by one process, and loaded only if whole.

::

    ~/.cache/anyrig/virtual/…/
        51b2…/library.so                  what is loaded
        51b2…/library.so.sha256           its hash, recorded when it was built
        51b2….lock                        held by the process that builds
        51b2….builder                     which process that is
        51b2….building-ab12/              where it builds, the compiler's temporary files included

A library is compiled in a temporary folder and moved to its place in one step. One that was damaged
later, by a full disk or a copy that was cut short, would crash the process that loads it, so its
hash is compared first, which takes some milliseconds. A build that is killed leaves only its
temporary folder, and the next build removes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import BuildError
from .build_progress import BuildProgress

# Far above any build: on one slow core it takes a few minutes.
LONGEST_WAIT_SECONDS = 900.0

_BUILDING = ".building-"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return where libraries are kept: under ``$XDG_CACHE_HOME``, else ``~/.cache``.

    Raises:
        BuildError: this user has no home folder.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "anyrig" / "virtual"
    except RuntimeError:
        raise BuildError(
            "there is no place for the virtual GPUs: HOME is not set, and the user "
            f"{os.getuid()} has no home folder in /etc/passwd; name a folder with XDG_CACHE_HOME"
        ) from None


def is_whole(library: Path) -> bool:
    """Return whether `library` is there as it was built, and no other user could have changed it.

    Raises:
        BuildError: it belongs to another user, or cannot be read.
    """
    try:
        files = [*_own_folders(library.parent), library, _record_of(library)]
        return all(_only_this_user_writes(each) for each in files) and (
            _record_of(library).read_bytes() == _hash_of(library)
        )
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise BuildError(
            f"{library} cannot be read: {error}; remove {library.parent}, or name another folder "
            "with XDG_CACHE_HOME"
        ) from error


def keep(library: Path, build: Callable[[Path], Path], *, again: bool = False) -> Path:
    """Return `library`; build it if there is none that is whole, or if it is to be built again.

    Args:
        library: its place, below `cache_folder`, in a folder of its own.
        build: compiles it in the folder given, and returns where it is.
        again: build even if there is one.

    Raises:
        BuildError: it cannot be built, it belongs to another user, or another process takes too
            long to build it.
    """
    if not again and is_whole(library):
        return library
    with _the_only_builder(library.parent):
        # Another process may have built it while this one waited.
        if again or not is_whole(library):
            if library.exists() and not again:
                sys.stderr.write(
                    f"anyrig: {library} is damaged, or another user could have changed it: "
                    "it is built again\n"
                )
            _build(library, build)
    return library


def _build(library: Path, build: Callable[[Path], Path]) -> None:
    _remove_killed_builds(library.parent)
    place, prefix = library.parent.parent, f"{library.parent.name}{_BUILDING}"
    with tempfile.TemporaryDirectory(dir=place, prefix=prefix) as folder:
        built = build(Path(folder))
        record = _record_of(built)
        record.write_bytes(_hash_of(built))
        for file in (built, record):
            file.chmod(file.stat().st_mode & ~_OTHERS_MAY_WRITE)
        _make_private(library.parent)
        # In this order: a process that is killed in between leaves what is taken for damaged.
        record.replace(_record_of(library))
        built.replace(library)


def _remove_killed_builds(held: Path) -> None:
    """Remove the temporary folders that nobody builds in; this process has the lock of `held`."""
    found = [*cache_folder().glob(f"*{_BUILDING}*"), *cache_folder().glob(f"*/*{_BUILDING}*")]
    for folder in found:
        of = folder.with_name(folder.name.partition(_BUILDING)[0])
        with suppress(Timeout), nullcontext() if of == held else FileLock(f"{of}.lock", timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _the_only_builder(folder: Path) -> Iterator[None]:
    """Hold the lock of the build whose result is `folder`; wait for its holder, with an end."""
    lock = FileLock(f"{folder}.lock")
    builder = folder.with_name(f"{folder.name}.builder")
    try:
        _make_private(folder.parent)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            with BuildProgress.waiting_for(_read_builder(builder)):
                lock.acquire(timeout=LONGEST_WAIT_SECONDS)
    except Timeout:
        raise BuildError(
            f"the virtual backend is being built by {_read_builder(builder)}, and was not ready "
            f"after {LONGEST_WAIT_SECONDS:.0f} s; end that process, or remove {lock.lock_file}"
        ) from None
    except OSError as error:
        raise BuildError(
            f"the virtual backend cannot be kept in {folder.parent}: {error}; "
            "name a folder that can be written with XDG_CACHE_HOME"
        ) from error
    try:
        builder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
        builder.unlink()
    finally:
        lock.release()


def _make_private(folder: Path) -> None:
    """Make `folder` and those of anyrig's above, anew where other users may write to them."""
    top, *below = _own_folders(folder)
    top.parent.mkdir(parents=True, exist_ok=True)
    for each in (top, *below):
        each.mkdir(mode=0o755, exist_ok=True)
        if not _only_this_user_writes(each):
            sys.stderr.write(
                f"anyrig: other users may write to {each}; what was kept there is removed, and "
                "built again\n"
            )
            aside = each.with_name(f"{each.name}{_BUILDING}{os.getpid()}")
            each.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
            each.mkdir(mode=0o755)


def _own_folders(folder: Path) -> list[Path]:
    """Return the folders from `cache_folder` and its parent down to `folder`."""
    top = cache_folder().parent
    return [each for each in reversed([folder, *folder.parents]) if each.is_relative_to(top)]


def _only_this_user_writes(path: Path) -> bool:
    """Return whether no other user but root may write to `path`: to load it runs its code."""
    found = path.stat()
    others_write = bool(found.st_mode & _OTHERS_MAY_WRITE)
    if found.st_uid == os.geteuid() or (found.st_uid == 0 and not others_write):
        return not others_write
    raise BuildError(
        f"{path} belongs to user {found.st_uid} and has the mode {stat.S_IMODE(found.st_mode):o}, "
        f"so code from there is not loaded for user {os.geteuid()}; name a folder of your own with "
        "XDG_CACHE_HOME"
    )


def _record_of(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def _hash_of(library: Path) -> bytes:
    return hashlib.sha256(library.read_bytes()).hexdigest().encode()


def _read_builder(builder: Path) -> str:
    """Return the process that builds; it may not have written itself down yet."""
    try:
        return builder.read_text() or "another process"
    except FileNotFoundError:
        return "another process"
