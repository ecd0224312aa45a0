"""The virtual backend as a loaded module: built on first use, kept, shared between processes.

::

    ~/.cache/anyrig/virtual/
        2.13.0+cpu-cpython-311-x86_64-linux-gnu-0f3c…/      PyTorch, Python, hash of the sources
            51b2…/anyrig_virtual_extension.so               hash of compiler and flags
        driver-77e0…/                                       of driver/library.py
        jiterator/                                          of host_kernel.py

How a library is built once and found whole: `kept_library`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from ..errors import BuildError, NoCompilerError
from .build_progress import BuildProgress
from .compiler import (
    MODULE_NAME,
    Compiler,
    compile_extension,
    compile_flags,
    count_units,
    estimate_seconds,
)
from .kept_library import cache_folder, is_whole, keep

SOURCES = Path(__file__).parent / "csrc"


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
    """Return the library of the C++ files below `sources`, compiled if there is no whole one.

    Args:
        sources: where the C++ files are.
        again: compile it even if there is one.

    Raises:
        NoCompilerError: it must be built, and a compiler or Python's headers are not installed.
        BuildError: it cannot be built, or another process takes too long to build it.
    """
    versions = cache_folder() / _versions_key(sources)
    try:
        compiler = Compiler.find()
    except NoCompilerError as error:
        # Built elsewhere and copied here, as in the second stage of a container's image.
        copies = list(versions.glob(f"*/{MODULE_NAME}.so"))
        whole = next(filter(is_whole, copies), None)
        if whole is not None and not again:
            return whole
        if copies and not again:
            raise NoCompilerError(
                f"{copies[0]} is damaged, or another user could have changed it: {error}"
            ) from None
        raise
    flags = compile_flags()
    folder = versions / _hash(*compiler.command, compiler.version, *flags)
    library = folder / f"{MODULE_NAME}.so"

    def build(folder: Path) -> Path:
        units = count_units()
        with BuildProgress(compiler.version, estimate_seconds(units)):
            return compile_extension(compiler, sources, units, flags, folder)

    return keep(library, build, again=again)


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
