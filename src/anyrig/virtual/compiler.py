"""The C++ compiler of this machine, and how the virtual backend is compiled with it.

PyTorch's headers alone take 9 s of processor time in a file that includes few of them and 25 s in
one that includes all that the backend does. So the sources are put together into units, one a core
and at least two, which are compiled at once (see `estimate_seconds`). A name that a file keeps to
itself must therefore be its own in the whole backend. The compiler is called directly; neither
ninja nor setuptools needs to be installed.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

from ..errors import BuildError, NoCompilerError
from .compiler_processes import CompilerProcesses

MODULE_NAME = "anyrig_virtual_extension"

# One alone would take twice as much memory; beyond eight, PyTorch's headers are most of each.
_LEAST_UNITS, _MOST_UNITS = 2, 8

# Processor time on an AMD EPYC of 2024 with g++ 12: of each unit's headers, and of all sources.
_SECONDS_OF_HEADERS, _SECONDS_OF_SOURCES = 20.0, 50.0

# A unit takes less than this while it compiles; PyTorch's headers are most of it.
_BYTES_A_UNIT = 1.5 * 2**30

# How to install a compiler, and the headers of Python, by the family of the system.
_INSTALL = {
    "debian": ("sudo apt-get install g++", "sudo apt-get install python{version}-dev"),
    "fedora": ("sudo dnf install gcc-c++", "sudo dnf install python{version}-devel"),
    "suse": ("sudo zypper install gcc-c++", "sudo zypper install python{digits}-devel"),
    "arch": ("sudo pacman -S gcc", "sudo pacman -S python"),
    "darwin": ("xcode-select --install", "brew install python@{version}"),
}
_INSTALL_ANYWHERE = ("conda install cxx-compiler", "conda install python={version}")


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that answers.

    Attributes:
        command: the words it is called by, such as ``("g++",)`` or ``("ccache", "g++")``.
        version: the first line of its ``--version``.
    """

    command: tuple[str, ...]
    version: str

    @classmethod
    def find(cls) -> Compiler:
        """Return the compiler that ``$CXX`` names, else the first of g++, clang++ and c++.

        Raises:
            NoCompilerError: there is none; the message holds the command that installs one.
        """
        chosen = os.environ.get("CXX")
        for candidate in [chosen] if chosen else ["g++", "clang++", "c++"]:
            command = tuple(shlex.split(candidate))
            if shutil.which(command[0]) is None:
                continue
            asked = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, check=False
            )
            if asked.returncode == 0 and asked.stdout:
                return cls(command, asked.stdout.splitlines()[0])
        looked_for = f"the compiler {chosen!r}, which CXX names," if chosen else "a C++ compiler"
        raise NoCompilerError(
            f"virtual GPUs need {looked_for} once, and none was found on this machine; "
            f"install one with: {_install_commands()[0]}"
        )


def compile_extension(
    compiler: Compiler,
    sources: Path,
    units: int,
    flags: Sequence[str],
    folder: Path,
) -> Path:
    """Compile the files below `sources`, link them, and return the library, placed in `folder`.

    Raises:
        BuildError: the compiler refused a file; the message holds its first errors.
        NoCompilerError: the headers of this Python are not installed.
    """
    # Quoted names start at `sources`; a folder there may be called as a standard header is.
    flags = [*flags, "-iquote", str(sources), *_header_flags()]
    texts = _write_units(sorted(sources.rglob("*.cpp")), units, folder)
    objects = [text.with_suffix(".o") for text in texts]
    library = folder / f"{MODULE_NAME}.so"
    with CompilerProcesses(min(units, _possible_jobs()), folder) as processes:
        compilations = [
            processes.start(
                [*compiler.command, *flags, "-c", str(text), "-o", str(target)],
                "the virtual backend could not be compiled",
            )
            for text, target in zip(texts, objects, strict=True)
        ]
        for compilation in as_completed(compilations):
            compilation.result()
        processes.start(
            [*compiler.command, *map(str, objects), *_link_flags(), "-o", str(library)],
            "the virtual backend could not be linked",
        ).result()
    return library


def count_units() -> int:
    """Return how many units the sources are best put into on this machine."""
    return min(max(_possible_jobs(), _LEAST_UNITS), _MOST_UNITS)


def estimate_seconds(units: int) -> float:
    """Return about how long `compile_extension` takes for `units` on this machine, in seconds."""
    rounds = math.ceil(units / _possible_jobs())
    return rounds * (_SECONDS_OF_HEADERS + _SECONDS_OF_SOURCES / units)


def _write_units(sources: Sequence[Path], count: int, folder: Path) -> list[Path]:
    """Write `count` files that include all `sources` between them, about as much in each."""
    units: list[list[Path]] = [[] for _ in range(count)]
    for source in sorted(sources, key=lambda source: source.stat().st_size, reverse=True):
        min(units, key=lambda unit: sum(file.stat().st_size for file in unit)).append(source)
    paths = [folder / f"unit_{number}.cpp" for number in range(count)]
    for path, unit in zip(paths, units, strict=True):
        path.write_text("".join(f'#include "{source}"\n' for source in sorted(unit)))
    return paths


def compile_flags() -> list[str]:
    """Return the flags that decide what a library of this PyTorch contains.

    Raises:
        BuildError: on Windows, where virtual GPUs do not run.
    """
    import torch
    import torch.distributed

    if sys.platform == "win32":
        raise BuildError("virtual GPUs need Linux or macOS; on Windows use them within WSL")
    flags = ["-std=c++20", "-fPIC", "-O2", "-g0", "-fvisibility=hidden", "-w"]
    flags += [f"-DTORCH_EXTENSION_NAME={MODULE_NAME}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    # PyTorch's own headers hide the process groups from whoever does not define these.
    if torch.distributed.is_available():
        flags += ["-DUSE_DISTRIBUTED"]
        flags += ["-DUSE_C10D_GLOO"] if torch.distributed.is_gloo_available() else []
    return flags


def _possible_jobs() -> int:
    """Return how many compilers may run at once: one a core, as far as memory goes."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    fitting = int(psutil.virtual_memory().available / _BYTES_A_UNIT)
    return max(1, min(cores, fitting))


def _link_flags() -> list[str]:
    flags = ["-shared", f"-L{_pytorch_folder() / 'lib'}"]
    flags += ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    # Python's own symbols are found when the library is loaded; only this linker must be told.
    return [*flags, "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else flags


def _header_flags() -> list[str]:
    """Return where the headers of PyTorch and Python lie."""
    python_headers = Path(sysconfig.get_path("include"))
    if not (python_headers / "Python.h").is_file():
        raise NoCompilerError(
            f"virtual GPUs are compiled once, which needs the headers of Python "
            f"{platform.python_version()}, and {python_headers} has no Python.h; "
            f"install them with: {_install_commands()[1]}"
        )
    include = _pytorch_folder() / "include"
    folders = [include, include / "torch" / "csrc" / "api" / "include", python_headers]
    return [word for folder in folders for word in ("-isystem", str(folder))]


def _pytorch_folder() -> Path:
    """Return where PyTorch lies; its `cpp_extension` knows too, but looks for a CUDA toolkit."""
    import torch

    return Path(torch.__file__).parent


@functools.cache
def _install_commands() -> tuple[str, str]:
    """Return what installs a compiler here, and what installs the headers of this Python."""
    families = ["darwin"] if sys.platform == "darwin" else _linux_families()
    compiler, headers = next(
        (_INSTALL[family] for family in families if family in _INSTALL), _INSTALL_ANYWHERE
    )
    version = "{}.{}".format(*sys.version_info[:2])
    return compiler, headers.format(version=version, digits=version.replace(".", ""))


def _linux_families() -> list[str]:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return []
    # openSUSE calls itself "opensuse-leap" and says that it is like "suse".
    return [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
