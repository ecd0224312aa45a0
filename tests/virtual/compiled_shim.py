"""Compile a C++ shim of this folder and load it with ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "anyrig" / "virtual" / "csrc"


def load_shim(name: str, folder: Path, *flags: str) -> ctypes.CDLL:
    """Return the library of ``tests/virtual/<name>.cpp``. Skip the test if there is no compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler (g++ or clang++) to build the shim with")
    library = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.cpp")
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
    paths = ["-iquote", str(SOURCES), str(source), "-o", str(library)]
    subprocess.run(
        [compiler, "-std=c++17", "-shared", "-fPIC", *strict, *flags, *paths], check=True
    )
    return ctypes.CDLL(str(library))
