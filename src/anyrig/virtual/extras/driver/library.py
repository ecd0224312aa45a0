"""The files of NVML's library and `nvidia-smi`, built when a rehearsal first needs them.

::

    ~/.cache/anyrig/virtual/
        driver-77e0…/                    hash of the sources
            libnvidia-ml.so.1
        smi-90ab…/nvidia-smi             hash of the script: which Python runs which anyrig

The library does not depend on PyTorch or Python, so every version shares one. It compiles in 2 s,
unless the package `anyrig-virtual` has it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shlex
import sys
from pathlib import Path

from ....errors import BuildError
from ...compiler import Compiler
from ...compiler_processes import CompilerProcesses
from ...library_cache import build_once, cache_folder, store_script
from ...packaged_libraries import find_packaged

VARIABLE = "ANYRIG_DRIVER"

# The name by which programs open the library. It is the soname too, so that opening the name again
# returns the library that is already loaded.
LIBRARY = "libnvidia-ml.so.1"

_SOURCES = Path(__file__).parent / "nvml"
_FLAGS = ("-std=c++20", "-fPIC", "-O1", "-g0", "-fvisibility=hidden", "-w", "-shared")

# The program's Python may not have anyrig installed, so the script names a Python that has.
_COMMAND = """\
#!/bin/sh
LD_LIBRARY_PATH={library} exec {python} -I -c {program} "$@"
"""
_PROGRAM = """\
import sys
sys.path = [{anyrig!r}, *sys.path, {pynvml!r}]
from anyrig.virtual.extras.driver.smi.command import main
sys.exit(main(sys.argv[1:]))"""


def driver_environment(facts: str) -> dict[str, str]:
    """Return the environment in which a process finds NVML and `nvidia-smi` for the rig of `facts`.

    Return an empty dictionary if the library cannot be built. That is not an error yet: a process
    may need neither NVML nor torch, and importing torch reports the failure.
    """
    if sys.platform != "linux":
        return {}
    try:
        library = build_library()
        command = _command(library.parent)
    except BuildError:
        return {}
    return {
        VARIABLE: facts,
        "LD_LIBRARY_PATH": _in_front(str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")),
        "PATH": _in_front(str(command), os.environ.get("PATH", os.defpath)),
    }


def load_nvml(facts: str) -> None:
    """Load NVML's library for the rig of `facts` into this process.

    The linker reads ``LD_LIBRARY_PATH`` only when a process starts. Once the library is loaded,
    programs that open NVML by name get this copy.

    Raises:
        NoCompilerError: the library must be built, and there is no compiler.
        BuildError: the library cannot be built.
    """
    if sys.platform == "linux":
        ctypes.CDLL(str(build_library())).anyrig_use_rig(os.fsencode(facts))


def build_library(*, again: bool = False) -> Path:
    """Return the path of NVML's library; compile the library if no intact copy exists.

    Args:
        again: compile the library even if an intact copy exists.

    Raises:
        NoCompilerError: the library must be built, and there is no compiler.
        BuildError: the library cannot be built, or another process takes too long to build it.
    """
    key = library_key()
    packaged = find_packaged(key, LIBRARY)
    if packaged.path is not None and not again:
        return packaged.path
    return build_once(cache_folder() / key / LIBRARY, compile_library, again=again)


def library_key() -> str:
    """Return the name of the library's folder: the hash of the sources and the flags."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(_SOURCES.iterdir())]
    return f"driver-{_hash(platform.machine(), *_FLAGS, *texts)}"


def compile_library(folder: Path) -> Path:
    """Compile the library in `folder`; return its path.

    Raises:
        NoCompilerError: there is no compiler.
        BuildError: the library cannot be compiled.
    """
    compiler = Compiler.find()
    # One translation unit: most of the time goes to the standard library's headers.
    unit, built = folder / "unit.cpp", folder / LIBRARY
    sources = sorted(_SOURCES.glob("*.cpp"))
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    words = [*compiler.command, *_FLAGS, f"-Wl,-soname,{LIBRARY}", "-iquote", str(_SOURCES)]
    with CompilerProcesses(1, folder) as processes:
        processes.start(
            [*words, str(unit), "-o", str(built)], "NVML's library could not be compiled"
        ).result()
    return built


def _command(library: Path) -> Path:
    """Return the folder with the `nvidia-smi` script; write the script if needed.

    Args:
        library: the folder of NVML's library.

    Raises:
        BuildError: the script cannot be stored.
    """
    pynvml = importlib.util.find_spec("pynvml")
    program = _PROGRAM.format(
        anyrig=str(Path(__file__).parents[4]),
        pynvml=str(Path(str(pynvml.origin if pynvml else None)).parent),
    )
    text = _COMMAND.format(
        library=shlex.quote(str(library)),
        python=shlex.quote(sys.executable),
        program=shlex.quote(program),
    )
    return store_script(f"smi-{_hash(text)}", "nvidia-smi", text)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _in_front(folder: str, path: str) -> str:
    """Return the search path `path` with `folder` moved or added to the front."""
    others = [entry for entry in path.split(os.pathsep) if entry != folder] if path else []
    return os.pathsep.join([folder, *others])
