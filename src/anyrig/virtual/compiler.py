"""The C++ compiler of this machine, and the compilation of the virtual backend.

PyTorch's headers alone take 5 s of CPU time in a file that includes few of them, and 15 s in
a file with all of the backend's includes. So the sources are merged into translation units, one per
core and at least two, which compile concurrently (see `estimate_cpu_seconds`). Names with internal
linkage must therefore be unique across the backend.

Half of the units hold the code that runs in every call of an operator, which is compiled with
``-O2`` and needs few of the headers. The others hold the rest, with ``-Og``: it mostly calls
PyTorch's operators, and compiles in 15 % less time than with ``-O1``.

The compiler is called directly: neither ninja nor setuptools needs to be installed.
"""

from __future__ import annotations

import functools
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
from .torch_files import TorchFiles

MODULE_NAME = "anyrig_virtual_extension"

# A single unit would take twice as much memory. With more than eight, most of the time would go to
# PyTorch's headers.
_LEAST_UNITS, _MOST_UNITS = 2, 8

# The folders whose code runs in every call of an operator.
_IN_EVERY_CALL = frozenset({"device", "dispatch", "memory", "random", "temporaries", "time"})

# How the two kinds of units are optimised. Inlining makes GCC's large units grow by 40 % at most,
# which leaves many accessors of PyTorch's tensors as calls: a tenth of a virtual call's overhead.
_OPTIMISATION = {
    "-O2": ("-O2", "--param", "inline-unit-growth=200", "--param", "large-unit-insns=100000"),
    "-Og": ("-Og",),
}

# Headers that are found before PyTorch's of the same names, which declare thousands of functions
# that the backend does not use.
_NARROW_HEADERS = "narrow_headers"

# Processor time for the headers of one unit and for all sources, with linking (AMD EPYC of 2024,
# g++ 12).
_CPU_SECONDS_OF_HEADERS, _CPU_SECONDS_OF_SOURCES = 12.0, 116.0

# Upper bound of the compiler's memory for one of two units; of more units, each needs less.
_BYTES_PER_UNIT = 3 * 2**30

# The commands that install a compiler and Python's headers, by operating system family.
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
    """A working C++ compiler.

    Attributes:
        command: the words of the command, such as ``("g++",)`` or ``("ccache", "g++")``.
        version: the first line of the output of ``--version``.
    """

    command: tuple[str, ...]
    version: str

    @classmethod
    def find(cls) -> Compiler:
        """Return the compiler that ``$CXX`` names, else the first of g++, clang++ and c++.

        Raises:
            NoCompilerError: there is no compiler; the message contains the command to install one.
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
        missing = f"the compiler {chosen!r}, which CXX names," if chosen else "a C++ compiler"
        raise NoCompilerError(
            f"virtual GPUs must be built once, and {missing} was not found on this machine; "
            f"install one with: {_install_commands()[0]}"
        )


def compile_extension(
    compiler: Compiler,
    torch: TorchFiles,
    sources: Path,
    units: int,
    flags: Sequence[str],
    folder: Path,
) -> Path:
    """Compile and link the C++ files below `sources`; return the path of the library.

    Args:
        compiler: the compiler.
        torch: the PyTorch to compile for.
        sources: the folder of the C++ files.
        units: the number of translation units (`count_units`).
        flags: the compiler's flags (`compile_flags`).
        folder: the folder for the objects and the library.

    Raises:
        BuildError: a file does not compile or link; the message contains the first errors.
        NoCompilerError: the headers of this Python are not installed.
    """
    # `-iquote` rather than `-I`: a folder of the sources may have the name of a standard header.
    narrow = ["-isystem", str(sources / _NARROW_HEADERS)]
    flags = [*flags, "-iquote", str(sources), *narrow, *header_flags(torch)]
    texts = _write_units(sources, units, folder)
    objects = [text.with_suffix(".o") for text in texts]
    library = folder / f"{MODULE_NAME}.so"
    command = [*compiler.command, *flags]
    with CompilerProcesses(count_jobs(units), folder) as processes:
        compilations = [
            processes.start(
                [*command, *_OPTIMISATION[level], "-c", str(text), "-o", str(target)],
                "the virtual backend could not be compiled",
            )
            for (text, level), target in zip(texts.items(), objects, strict=True)
        ]
        warnings = "".join(compilation.result() for compilation in as_completed(compilations))
        processes.start(
            [*compiler.command, *map(str, objects), *_link_flags(torch), "-o", str(library)],
            "the virtual backend could not be linked",
        ).result()
    warnings_of(library).write_text(warnings)
    return library


def warnings_of(library: Path) -> Path:
    """Return the file with the compiler's warnings about the sources of `library`."""
    return library.with_name(f"{library.name}.warnings")


def count_units() -> int:
    """Return the best number of translation units for this machine."""
    return min(max(_possible_jobs(), _LEAST_UNITS), _MOST_UNITS)


def count_jobs(units: int) -> int:
    """Return how many of `units` translation units compile concurrently on this machine."""
    return min(units, _possible_jobs())


def estimate_cpu_seconds(units: int) -> float:
    """Return the estimated CPU time of `compile_extension` for `units`, in seconds."""
    return units * _CPU_SECONDS_OF_HEADERS + _CPU_SECONDS_OF_SOURCES


def _write_units(sources: Path, count: int, folder: Path) -> dict[Path, str]:
    """Write `count` files that together include all C++ files below `sources`.

    Returns:
        For each file, the compiler's flag for its level of optimisation.
    """
    levels: dict[str, list[Path]] = {"-O2": [], "-Og": []}
    for file in sorted(sources.rglob("*.cpp")):
        levels["-O2" if _runs_in_every_call(file, sources) else "-Og"].append(file)
    counts = {"-O2": count // 2, "-Og": count - count // 2}
    units = {}
    for level, files in levels.items():
        for number, part in enumerate(_divide(files, counts[level])):
            path = folder / f"unit{level}-{number}.cpp"
            path.write_text("".join(f'#include "{file}"\n' for file in sorted(part)))
            units[path] = level
    return units


def _runs_in_every_call(file: Path, sources: Path) -> bool:
    # A file that serves Python is not in the way of a call, and pybind11's headers take seconds.
    is_for_python = "pybind11" in file.read_text(encoding="utf-8")
    return file.relative_to(sources).parts[0] in _IN_EVERY_CALL and not is_for_python


def _divide(files: Sequence[Path], count: int) -> list[list[Path]]:
    """Return `files` in `count` parts of about equal size, or in fewer if there are few files."""
    parts: list[list[Path]] = [[] for _ in range(count)]
    for file in sorted(files, key=_size, reverse=True):
        min(parts, key=lambda part: sum(map(_size, part))).append(file)
    return [part for part in parts if part]


def _size(file: Path) -> int:
    return file.stat().st_size


def compile_flags(torch: TorchFiles) -> list[str]:
    """Return the compiler flags for this PyTorch.

    Raises:
        BuildError: this is Windows, which virtual GPUs do not support.
    """
    if sys.platform == "win32":
        raise BuildError("virtual GPUs need Linux or macOS; on Windows, use them in WSL")
    flags = ["-std=c++20", "-fPIC", "-O1", "-g0", "-fvisibility=hidden"]
    # PyTorch's headers then include only the operators that they use, instead of all operators.
    flags += ["-DAT_PER_OPERATOR_HEADERS"]
    # As PyTorch is built. Without it, every call of an operator runs the debug checks in PyTorch's
    # headers, and at::RecordFunction has a member more than in PyTorch's libraries.
    flags += ["-DNDEBUG"]
    # A method that should override PyTorch's but does not is silently never called. These are only
    # warnings, since a newer PyTorch may declare a method that older versions do not.
    flags += ["-Wsuggest-override", "-Woverloaded-virtual"]
    flags += [f"-DTORCH_EXTENSION_NAME={MODULE_NAME}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    # The compiler's garbage collection takes 7 % of its time with g++'s default, 128 MiB.
    flags += ["--param", "ggc-min-heapsize=1000000"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.has_cxx11_abi)}"]
    # Without these macros, PyTorch's headers do not declare the process groups.
    flags += ["-DUSE_DISTRIBUTED"] if torch.has_distributed else []
    flags += ["-DUSE_C10D_GLOO"] if torch.has_gloo else []
    return flags


def _possible_jobs() -> int:
    """Return how many compilers can run concurrently: one per core, if the memory suffices."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    fitting = int(psutil.virtual_memory().available / _BYTES_PER_UNIT)
    return max(1, min(cores, fitting))


def _link_flags(torch: TorchFiles) -> list[str]:
    flags = ["-shared", f"-L{torch.folder / 'lib'}"]
    flags += ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    # Python's symbols resolve when the library is loaded. Only the linker of macOS needs a flag.
    return [*flags, "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else flags


def header_flags(torch: TorchFiles) -> list[str]:
    """Return the flags with the include folders of PyTorch and Python.

    Raises:
        NoCompilerError: the headers of this Python are not installed.
    """
    python_headers = Path(sysconfig.get_path("include"))
    if not (python_headers / "Python.h").is_file():
        raise NoCompilerError(
            f"virtual GPUs must be built once, which needs the headers of Python "
            f"{platform.python_version()}, and {python_headers} has no Python.h; "
            f"install them with: {_install_commands()[1]}"
        )
    include = torch.folder / "include"
    folders = [include, include / "torch" / "csrc" / "api" / "include", python_headers]
    return [word for folder in folders for word in ("-isystem", str(folder))]


@functools.cache
def _install_commands() -> tuple[str, str]:
    """Return the commands that install a compiler and the headers of this Python."""
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
    # openSUSE has the ID "opensuse-leap" and lists "suse" in ID_LIKE.
    return [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
