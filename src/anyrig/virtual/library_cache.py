"""The cache of compiled libraries: one process builds a library, and all check its hash.

::

    ~/.cache/anyrig/virtual/…/
        51b2…/library.so                  the library
        51b2…/library.so.sha256           its hash, recorded after the build
        51b2…/library.so.warnings         the compiler's warnings, if the build recorded them
        51b2….lock                        the lock of the process that builds
        51b2….builder                     the name of that process, for messages
        51b2….building-ab12/              its build folder, with the compiler's temporary files

A library is compiled in a temporary folder and then moved to its place atomically. Loading a
damaged library (full disk, interrupted copy) would crash the process, so the hash is checked before
every load, which takes a few milliseconds. A killed build leaves only its temporary folder, which
the next build removes.
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

# Far longer than any build, which takes a few minutes on one slow core.
LONGEST_WAIT_SECONDS = 900.0

_BUILDING = ".building-"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return the folder of the cache: below ``$XDG_CACHE_HOME``, or else ``~/.cache``.

    Raises:
        BuildError: neither ``XDG_CACHE_HOME`` nor a home folder exists.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "anyrig" / "virtual"
    except RuntimeError:
        raise BuildError(
            "there is no cache folder for the virtual GPUs: HOME is not set, and the user "
            f"{os.getuid()} has no home folder in /etc/passwd; set XDG_CACHE_HOME to a folder"
        ) from None


def is_intact(library: Path) -> bool:
    """Return whether `library` exists, matches its hash, and no other user could have changed it.

    Raises:
        BuildError: the library belongs to another user or cannot be read.
    """
    try:
        files = [*_own_folders(library.parent), library, record_of(library)]
        return all(_only_this_user_writes(file) for file in files) and matches_record(library)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise BuildError(
            f"{library} cannot be read: {error}; remove {library.parent}, or set XDG_CACHE_HOME to "
            "another folder"
        ) from error


def build_once(library: Path, build: Callable[[Path], Path], *, again: bool = False) -> Path:
    """Return `library`; build the library first if there is no intact copy, or if `again`.

    Args:
        library: the path of the library, in a folder of its own below `cache_folder`.
        build: a function that compiles the library in a given folder and returns its path there.
        again: build even if an intact library exists.

    Raises:
        BuildError: the library cannot be built, belongs to another user, or another process takes
            too long to build it.
    """
    if not again and is_intact(library):
        return library
    with _build_lock(library.parent):
        # Another process may have built the library while this process waited.
        if again or not is_intact(library):
            if library.exists() and not again:
                sys.stderr.write(
                    f"anyrig: {library} is damaged, or another user could have changed it; "
                    "rebuilding it\n"
                )
            _build(library, build)
    return library


def store_script(folder_name: str, name: str, text: str) -> Path:
    """Write the executable script `name` into a folder of the cache, and return the folder.

    Raises:
        BuildError: the script cannot be stored, or the folder belongs to another user.
    """
    script = cache_folder() / folder_name / name
    try:
        _make_private(script.parent)
        if not script.is_file() or script.read_bytes() != text.encode():
            with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
                file.write(text)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(script)
    except OSError as error:
        raise _unwritable(script.parent, error) from error
    return script.parent


def _build(library: Path, build: Callable[[Path], Path]) -> None:
    _remove_killed_builds(library.parent)
    place, prefix = library.parent.parent, f"{library.parent.name}{_BUILDING}"
    with tempfile.TemporaryDirectory(dir=place, prefix=prefix) as folder:
        built = build(Path(folder))
        write_record(built)
        # The library last: if this process is killed in between, the hash does not match the old
        # library, and the library is rebuilt.
        files = [*built.parent.glob(f"{built.name}.*"), built]
        for file in files:
            file.chmod(file.stat().st_mode & ~_OTHERS_MAY_WRITE)
        _make_private(library.parent)
        for file in files:
            file.replace(library.with_name(file.name))


def _remove_killed_builds(held: Path) -> None:
    """Remove the temporary folders of killed builds; this process holds the lock of `held`."""
    found = [*cache_folder().glob(f"*{_BUILDING}*"), *cache_folder().glob(f"*/*{_BUILDING}*")]
    for folder in found:
        built = folder.with_name(folder.name.partition(_BUILDING)[0])
        lock = nullcontext() if built == held else FileLock(f"{built}.lock", timeout=0)
        with suppress(Timeout), lock:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _build_lock(folder: Path) -> Iterator[None]:
    """Hold the build lock of `folder`; wait up to `LONGEST_WAIT_SECONDS` for another holder."""
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
            f"{_read_builder(builder)} is building the virtual backend and was not done after "
            f"{LONGEST_WAIT_SECONDS:.0f} s; end that process, or remove {lock.lock_file}"
        ) from None
    except OSError as error:
        raise _unwritable(folder.parent, error) from error
    try:
        builder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
        builder.unlink()
    finally:
        lock.release()


def _unwritable(folder: Path, error: OSError) -> BuildError:
    return BuildError(
        f"the virtual backend cannot be stored in {folder}: {error}; "
        "set XDG_CACHE_HOME to a writable folder"
    )


def _make_private(folder: Path) -> None:
    """Create `folder` and anyrig's folders above it; replace those that others can write to."""
    top, *below = _own_folders(folder)
    top.parent.mkdir(parents=True, exist_ok=True)
    for own in (top, *below):
        own.mkdir(mode=0o755, exist_ok=True)
        if not _only_this_user_writes(own):
            sys.stderr.write(
                f"anyrig: other users can write to {own}; removing its contents and rebuilding "
                "them\n"
            )
            aside = own.with_name(f"{own.name}{_BUILDING}{os.getpid()}")
            own.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
            own.mkdir(mode=0o755)


def _own_folders(folder: Path) -> list[Path]:
    """Return the folders from the parent of `cache_folder` down to `folder`."""
    top = cache_folder().parent
    return [path for path in reversed([folder, *folder.parents]) if path.is_relative_to(top)]


def _only_this_user_writes(path: Path) -> bool:
    """Return whether no user but this one and root can write to `path`, whose code will run.

    Raises:
        BuildError: `path` belongs to another user.
    """
    found = path.stat()
    others_write = bool(found.st_mode & _OTHERS_MAY_WRITE)
    if found.st_uid == os.geteuid() or (found.st_uid == 0 and not others_write):
        return not others_write
    raise BuildError(
        f"{path} belongs to user {found.st_uid} and has the mode {stat.S_IMODE(found.st_mode):o}, "
        f"so code from there is not loaded for user {os.geteuid()}; set XDG_CACHE_HOME to a folder "
        "of your own"
    )


def record_of(library: Path) -> Path:
    """Return the file with the hash of `library`."""
    return library.with_name(f"{library.name}.sha256")


def write_record(library: Path) -> None:
    """Record the hash of `library`, which was just built."""
    record_of(library).write_bytes(_hash_of(library))


def matches_record(library: Path) -> bool:
    """Return whether `library` has the recorded hash.

    Raises:
        OSError: either file cannot be read.
    """
    return record_of(library).read_bytes() == _hash_of(library)


def _hash_of(library: Path) -> bytes:
    return hashlib.sha256(library.read_bytes()).hexdigest().encode()


def _read_builder(builder: Path) -> str:
    """Return the name of the process that builds, or "another process" if it is not known yet."""
    try:
        return builder.read_text() or "another process"
    except FileNotFoundError:
        return "another process"
