"""The virtual backend as a loaded module: built on first use, kept, shared between processes.

::

    ~/.cache/anyrig/virtual/
        2.13.0+cpu-cpython-311-x86_64-linux-gnu-0f3c…/      PyTorch, Python, hash of the sources
            51b2…/anyrig_virtual_extension.so               hash of compiler and flags
            51b2….lock                                      held by the process that builds
            51b2….builder                                   which process that is
        driver-77e0…/                                       driver/library.py has the rest
        jiterator/                                          host_kernel.py's

A library is compiled in a temporary folder and moved to its place in one step, so what is there is
whole: a build that is killed leaves only the temporary folder, and the next build removes it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from filelock import FileLock, Timeout

from ..errors import BuildError, NoCompilerError
from .build_progress import BuildProgress
from .compiler import MODULE_NAME, Compiler, compile_extension, compile_flags, count_units

SOURCES = Path(__file__).parent / "csrc"

# Far above any build: on one slow core it takes a few minutes.
LONGEST_WAIT_SECONDS = 900.0


@functools.cache
def load_extension() -> ModuleType:
    """Return the virtual backend's module, built first if this machine has not built it yet.

    Raises:
        NoCompilerError: it must be built, and a compiler or Python's headers are not installed.
        BuildError: it cannot be built or loaded, or another process takes too long to build it.
    """
    library = build_extension()
    spec = importlib.util.spec_from_file_location(MODULE_NAME, library)
    if spec is None or spec.loader is None:
        raise BuildError(f"Python cannot load {library}")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BuildError(
            f"the virtual backend {library} cannot be loaded: {error}; "
            "build it anew with: anyrig virtual build --again"
        ) from error
    sys.modules[MODULE_NAME] = module
    return module


def build_extension(sources: Path = SOURCES, *, again: bool = False) -> Path:
    """Return the library of the C++ files below `sources`; compile it if there is none, or `again`.

    Raises:
        NoCompilerError: it must be built, and a compiler or Python's headers are not installed.
        BuildError: it cannot be built, or another process takes too long to build it.
    """
    versions = cache_folder() / _versions_key(sources)
    try:
        compiler = Compiler.find()
    except NoCompilerError:
        # Built elsewhere and copied here, as in the second stage of a container's image.
        kept = next(versions.glob(f"*/{MODULE_NAME}.so"), None)
        if kept is None or again:
            raise
        return kept
    flags = compile_flags()
    folder = versions / _hash(*compiler.command, compiler.version, *flags)
    library = folder / f"{MODULE_NAME}.so"
    if library.is_file() and not again:
        return library
    with the_only_builder(folder):
        # Another process may have built it while this one waited.
        if not library.is_file() or again:
            _build(compiler, sources, flags, library)
    return library


def cache_folder() -> Path:
    """Return where built backends are kept: under ``$XDG_CACHE_HOME``, else ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "anyrig" / "virtual"


def _build(compiler: Compiler, sources: Path, flags: list[str], library: Path) -> None:
    # This process alone builds, so every temporary folder here is a killed build's.
    prefix = f"{library.parent.name}.building-"
    for left in library.parent.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    units = count_units()
    with (
        tempfile.TemporaryDirectory(dir=library.parent.parent, prefix=prefix) as folder,
        BuildProgress(compiler.version, units + 1) as progress,  # and to link them
    ):
        built = compile_extension(compiler, sources, units, flags, Path(folder), progress.advance)
        library.parent.mkdir(exist_ok=True)
        built.replace(library)


@contextmanager
def the_only_builder(folder: Path) -> Iterator[None]:
    """Hold the lock of the build whose result is `folder`; wait for who holds it, with an end."""
    lock = FileLock(f"{folder}.lock")
    builder = folder.with_name(f"{folder.name}.builder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
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


def _read_builder(builder: Path) -> str:
    """Return the process that builds; it may not have written itself down yet."""
    try:
        return builder.read_text() or "another process"
    except FileNotFoundError:
        return "another process"


def _versions_key(sources: Path) -> str:
    """Return what must agree for a library to fit: PyTorch, Python and its own sources."""
    import torch

    files = sorted(file for file in sources.rglob("*") if file.is_file())
    texts = [
        text
        for file in files
        for text in (file.relative_to(sources).as_posix(), file.read_text(encoding="utf-8"))
    ]
    abi = sysconfig.get_config_var("SOABI")
    return f"{torch.__version__}-{abi}-{_hash(str(torch.version.git_version), *texts)}"


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]
