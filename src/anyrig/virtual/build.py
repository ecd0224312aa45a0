"""Building and loading the virtual backend's C++ extension, once for each PyTorch and compiler.

::

    ~/.cache/anyrig/virtual/
        2.13.0-cpython-311-x86_64-linux-gnu-0f3c…/          PyTorch, Python, hash of the sources
            51b2…/anyrig_virtual_extension.so               hash of compiler and flags
            51b2….refused                                   why it cannot work (see trial.py)
        driver-77e0…/                                       see driver/library.py
        jiterator/                                          see host_kernel.py

`library_cache` builds each library once and checks that it is intact. The package `anyrig-virtual`
has compiled libraries of some versions (`packaged_libraries`), which then need no compiler.
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
from ..private_names import is_newer_than_tested
from .build_progress import BuildProgress
from .compiler import (
    MODULE_NAME,
    Compiler,
    compile_extension,
    compile_flags,
    count_jobs,
    count_units,
    estimate_cpu_seconds,
)
from .library_cache import build_once, cache_folder, is_intact
from .packaged_libraries import INSTALL, PackagedLibrary, find_packaged
from .torch_files import TorchFiles
from .trial import UndecidedTrialError, try_library

SOURCES = Path(__file__).parent / "csrc"
LIBRARY = f"{MODULE_NAME}.so"


@functools.cache
def load_extension() -> ModuleType:
    """Return the virtual backend's module; build it first if there is no intact copy.

    Raises:
        NoCompilerError: the backend must be built, and a compiler or Python's headers are missing.
        BuildError: the backend cannot be built or loaded, or another process takes too long to
            build it.
    """
    return sys.modules.get(MODULE_NAME) or load_library(build_extension())


def load_library(library: Path) -> ModuleType:
    """Return the module of `library`.

    Raises:
        BuildError: the library cannot be loaded.
    """
    spec = importlib.util.spec_from_file_location(MODULE_NAME, library)
    if spec is None or spec.loader is None:
        raise BuildError(f"Python cannot load {library}")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BuildError(
            f"the virtual backend {library} cannot be loaded: {error}; "
            "rebuild it with: anyrig virtual build --again"
        ) from error
    sys.modules[MODULE_NAME] = module
    return module


def build_extension(sources: Path = SOURCES, *, again: bool = False) -> Path:
    """Return the path of the library; compile the C++ files below `sources` if necessary.

    Args:
        sources: the folder of the C++ files.
        again: compile even if an intact library exists.

    Raises:
        NoCompilerError: the library must be built, and a compiler or Python's headers are missing.
        BuildError: the library cannot be built, or another process takes too long to build it.
    """
    torch = TorchFiles.installed()
    versions = cache_folder() / library_key(torch, sources)
    packaged = PackagedLibrary(None) if again else find_packaged(versions.name, LIBRARY)
    # A library in the cache has precedence: it is there if `again` was asked for.
    if packaged.path is not None and not versions.is_dir():
        return packaged.path
    try:
        compiler = Compiler.find()
    except NoCompilerError as error:
        # The library may have been built elsewhere and copied here, as in a multi-stage image.
        copies = list(versions.glob(f"*/{LIBRARY}"))
        intact = next(filter(is_intact, copies), packaged.path)
        if intact is not None and not again:
            return intact
        if copies and not again:
            raise NoCompilerError(
                f"{copies[0]} is damaged, or another user could have changed it: {error}"
            ) from None
        raise NoCompilerError(f"{error}{_other_remedy(torch, packaged)}") from None
    folder = build_folder(compiler, torch, sources)
    library = folder / LIBRARY
    if packaged.path is not None and not is_intact(library):
        return packaged.path
    refusal = folder.with_name(f"{folder.name}.refused")
    if refusal.exists() and not again:
        raise BuildError(refusal.read_text(encoding="utf-8"))

    def build(folder: Path) -> Path:
        if packaged.reason is not None:
            sys.stderr.write(f"anyrig: no compiled library is used: {packaged.reason}\n")
        built = compile_library(compiler, torch, sources, folder)
        refusal.unlink(missing_ok=True)
        if is_newer_than_tested():
            try:
                try_library(built)
            except UndecidedTrialError:
                raise
            except BuildError as error:
                # Every later use raises the error at once.
                refusal.write_text(str(error), encoding="utf-8")
                raise
        return built

    return build_once(library, build, again=again)


def build_folder(compiler: Compiler, torch: TorchFiles, sources: Path) -> Path:
    """Return the folder of the cache for what `compiler` makes of `sources` for `torch`.

    Raises:
        BuildError: this is Windows, or there is no cache.
    """
    digest = _hash(*compiler.command, compiler.version, *compile_flags(torch))
    return cache_folder() / library_key(torch, sources) / digest


def compile_library(compiler: Compiler, torch: TorchFiles, sources: Path, folder: Path) -> Path:
    """Compile the library in `folder` and show the progress; return its path.

    Raises:
        NoCompilerError: Python's headers are missing.
        BuildError: the library cannot be compiled.
    """
    units = count_units()
    with BuildProgress(compiler.version, estimate_cpu_seconds(units), count_jobs(units)):
        return compile_extension(compiler, torch, sources, units, compile_flags(torch), folder)


def library_key(torch: TorchFiles, sources: Path = SOURCES) -> str:
    """Return the name of the folder for `torch`, this Python and these sources."""
    files = sorted(
        file for file in sources.rglob("*") if file.suffix in (".h", ".cpp") and file.is_file()
    )
    texts = [
        text
        for file in files
        for text in (file.relative_to(sources).as_posix(), file.read_text(encoding="utf-8"))
    ]
    build = (torch.is_published, torch.has_cxx11_abi, torch.has_distributed, torch.has_gloo)
    abi = sysconfig.get_config_var("SOABI")
    return f"{torch.release}-{abi}-{_hash(torch.commit, str(build), *texts)}"


def _other_remedy(torch: TorchFiles, packaged: PackagedLibrary) -> str:
    """Return what else than a compiler would help, as the end of a sentence."""
    if packaged.reason is not None:
        return f"; the installed anyrig-virtual does not help: {packaged.reason}"
    if sys.platform == "linux" and torch.is_published and not is_newer_than_tested():
        return f"; or install compiled libraries with: {INSTALL}"
    return ""


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]
